package kernel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// attr is a netlink attribute.
func attr(kind int, data ...byte) []byte { return nl.NewRtAttr(kind, data).Serialize() }

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func ip(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

// head is struct rtmsg of a route of the main table that Twill wrote.
func head(family, bits byte) []byte {
	return []byte{family, bits, 0, 0, unix.RT_TABLE_MAIN, netstate.Protocol, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST,
		0, 0, 0, 0}
}

// set is m with other bytes from at on.
func set(m []byte, at int, bytes ...byte) []byte {
	m = slices.Clone(m)
	copy(m[at:], bytes)
	return m
}

// TestParseRoute reads messages as Linux sends them: nothing that a route has beyond what is wanted is lost.
func TestParseRoute(t *testing.T) {
	four := slices.Concat(head(unix.AF_INET, 24), attr(unix.RTA_TABLE, number(254)...),
		attr(unix.RTA_DST, ip("10.244.2.0")...), attr(unix.RTA_OIF, number(7)...))
	six := slices.Concat(head(unix.AF_INET6, 64), attr(unix.RTA_DST, ip("fc00:2::")...),
		attr(unix.RTA_PRIORITY, number(1024)...), attr(unix.RTA_OIF, number(7)...),
		attr(unix.RTA_CACHEINFO, make([]byte, 32)...), attr(unix.RTA_PREF, 0))
	hop := func(size uint16, index uint32) []byte {
		return append(binary.NativeEndian.AppendUint16(nil, size), append([]byte{0, 0}, number(index)...)...)
	}
	encap := func(by byte, attrs ...[]byte) []byte {
		return slices.Concat(attr(unix.RTA_ENCAP_TYPE, by, 0), attr(unix.RTA_ENCAP|unix.NLA_F_NESTED,
			slices.Concat(attrs...)...))
	}
	outer := slices.Concat(attr(nl.LWTUNNEL_IP6_ID, make([]byte, 8)...), attr(nl.LWTUNNEL_IP6_SRC, ip("2001:db8::1")...),
		attr(nl.LWTUNNEL_IP6_DST, ip("2001:db8::2")...), attr(nl.LWTUNNEL_IP6_HOPLIMIT, 0))
	for name, test := range map[string]struct {
		message []byte
		want    string
	}{
		"IPv4":    {four, "route 10.244.2.0/24 dev f"},
		"IPv6":    {six, "route fc00:2::/64 dev f"},
		"default": {slices.Concat(head(unix.AF_INET, 0), attr(unix.RTA_OIF, number(8)...)), "route 0.0.0.0/0 dev eth0"},
		"default IPv6": {slices.Concat(head(unix.AF_INET6, 0), attr(unix.RTA_OIF, number(8)...)),
			"route ::/0 dev eth0 metric 0"},
		"gateway": {slices.Concat(four, attr(unix.RTA_GATEWAY, ip("192.0.2.2")...),
			attr(unix.RTA_PREFSRC, ip("192.0.2.1")...)), "route 10.244.2.0/24 via 192.0.2.2 dev f src 192.0.2.1"},
		"onlink":    {set(four, 8, unix.RTNH_F_ONLINK), "route 10.244.2.0/24 dev f onlink"},
		"dead":      {set(four, 8, unix.RTNH_F_DEAD), "route 10.244.2.0/24 dev f"},
		"tos":       {set(four, 3, 16), "route 10.244.2.0/24 dev f tos 0x10"},
		"static":    {set(four, 5, unix.RTPROT_STATIC), "route 10.244.2.0/24 dev f proto 4"},
		"blackhole": {set(four, 7, unix.RTN_BLACKHOLE), "route blackhole 10.244.2.0/24"},
		"prohibit":  {set(four, 7, unix.RTN_PROHIBIT), "route 10.244.2.0/24 dev f type 8"},
		"link scope": {slices.Concat(set(four, 6, unix.RT_SCOPE_LINK), attr(unix.RTA_GATEWAY, ip("192.0.2.2")...)),
			"route 10.244.2.0/24 via 192.0.2.2 dev f scope link"},
		"link scope, no gateway": {set(four, 6, unix.RT_SCOPE_LINK), "route 10.244.2.0/24 dev f"},
		"metrics": {append(slices.Clone(four), attr(unix.RTA_METRICS,
			slices.Concat(attr(unix.RTAX_MTU, number(900)...), attr(unix.RTAX_ADVMSS, number(800)...),
				attr(unix.RTAX_WINDOW, number(1)...), attr(unix.RTAX_MTU,
					1))...)...), "route 10.244.2.0/24 dev f mtu 900 advmss 800 metric 3 metric 2"},
		"unknown": {append(slices.Clone(four), attr(unix.RTA_MARK, number(1)...)...),
			"route 10.244.2.0/24 dev f attribute 16"},
		"two ways": {append(slices.Clone(four), attr(unix.RTA_MULTIPATH,
			slices.Concat(hop(12, 7), []byte{0, 0, 0, 0}, hop(8, 8))...)...),
			"route 10.244.2.0/24 multipath 2"},
		"a way that is cut short": {append(slices.Clone(four), attr(unix.RTA_MULTIPATH,
			slices.Concat(hop(8, 7), hop(16, 8))...)...), "route 10.244.2.0/24 multipath 1"},
		"a way of no bytes": {append(slices.Clone(four), attr(unix.RTA_MULTIPATH, hop(0, 7)...)...),
			"route 10.244.2.0/24 dev f multipath 0"},
		"encap": {append(slices.Clone(six), encap(nl.LWTUNNEL_ENCAP_IP6, outer)...),
			"route fc00:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev f"},
		"another encap": {append(slices.Clone(six), encap(nl.LWTUNNEL_ENCAP_MPLS, outer)...),
			"route fc00:2::/64 dev f encap 1"},
		"encap and gateway": {slices.Concat(six, attr(unix.RTA_GATEWAY, ip("2001:db8::9")...),
			encap(nl.LWTUNNEL_ENCAP_IP6, outer)),
			"route fc00:2::/64 via 2001:db8::9 dev f encap 4"},
		"encap with a hop limit": {append(slices.Clone(six), encap(nl.LWTUNNEL_ENCAP_IP6, outer,
			attr(nl.LWTUNNEL_IP6_HOPLIMIT, 9), attr(nl.LWTUNNEL_IP6_TC, 1))...),
			"route fc00:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev f hoplimit 0x09 tc 0x01"},
		"encap with options": {append(slices.Clone(six), encap(nl.LWTUNNEL_ENCAP_IP6, outer, attr(8, 1),
			attr(nl.LWTUNNEL_IP6_FLAGS, 0, 1))...),
			"route fc00:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev f encap attribute 8 flags 0x0001"},
		"encap of nothing": {append(slices.Clone(six), encap(nl.LWTUNNEL_ENCAP_IP6)...),
			"route fc00:2::/64 dev f encap without addresses"},
	} {
		r, err := parseRoute(test.message)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := decodeRoute(r, map[int]string{7: "f", 8: "eth0"}).String(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	if r, _ := parseRoute(append(slices.Clone(four), attr(unix.RTA_MULTIPATH,
		slices.Concat(hop(8, 9), hop(8, 8))...)...)); r.index != 9 {
		t.Errorf("the first way's interface is %d, want 9", r.index)
	}
	if _, err := parseRoute(four[:11]); err == nil {
		t.Error("a route of 11 bytes was read")
	}
	if _, err := parseRoute(four[:12]); err != nil {
		t.Errorf("a route without attributes: %v", err)
	}
}

// TestTunnelExtra: what an IP-in-IP device has that Twill does not give it.
func TestTunnelExtra(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "dev", MTU: 1480, Alias: netstate.Mark, Flags: 1}
	bare := netlink.Iptun{LinkAttrs: attrs, Local: ip("192.0.2.1"), PMtuDisc: 1, Proto: unix.IPPROTO_IPIP}
	four := func(f func(*netlink.Iptun)) *netlink.Iptun { l := bare; f(&l); return &l }
	six := func(f func(*netlink.Ip6tnl)) *netlink.Ip6tnl {
		l := netlink.Ip6tnl{LinkAttrs: attrs, FlowBased: true}
		f(&l)
		return &l
	}
	tun := func(f func(*netlink.Tuntap)) *netlink.Tuntap {
		l := netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN}
		f(&l)
		return &l
	}
	vxlan := func(f func(*netlink.Vxlan)) *netlink.Vxlan {
		l := netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472, VtepDevIndex: 7, SrcAddr: ip("192.0.2.1")}
		f(&l)
		return &l
	}
	const vtep = "link dev vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472 mtu 1480 address 00:00:00:00:00:00 "
	const ipip = "link dev ipip local 192.0.2.1 mtu 1480 up"
	const ip6tnl = "link dev ip6tnl external mtu 1480 up"
	for want, l := range map[string]netlink.Link{
		ipip:                       &bare,
		ipip + " dev eth0":         four(func(l *netlink.Iptun) { l.ParentIndex = 7 }),
		ipip + " remote 192.0.2.2": four(func(l *netlink.Iptun) { l.Remote = ip("192.0.2.2") }),
		ipip + " ttl 3":            four(func(l *netlink.Iptun) { l.Ttl = 3 }),
		ipip + " tos 0x1":          four(func(l *netlink.Iptun) { l.Tos = 1; l.Remote = ip("0.0.0.0") }),
		ipip + " nopmtudisc":       four(func(l *netlink.Iptun) { l.PMtuDisc = 0 }),
		ipip + " encap 1":          four(func(l *netlink.Iptun) { l.EncapType = 1 }),
		ipip + " external":         four(func(l *netlink.Iptun) { l.FlowBased = true }),
		ipip + " proto 0":          four(func(l *netlink.Iptun) { l.Proto = 0 }),
		"link dev ipip local 192.0.2.1 mtu 1480 down unmarked": four(func(l *netlink.Iptun) { l.Alias, l.Flags = "", 0 }),
		ip6tnl:               six(func(*netlink.Ip6tnl) {}),
		ip6tnl + " proto 41": six(func(l *netlink.Ip6tnl) { l.Proto = 41 }),
		ip6tnl + " encap 1":  six(func(l *netlink.Ip6tnl) { l.EncapType = 1 }),
		"link dev ipip local invalid IP mtu 1480 up local 2001:db8::1 remote 2001:db8::2": six(func(l *netlink.Ip6tnl) {
			l.FlowBased, l.Local, l.Remote = false, ip("2001:db8::1"), ip("2001:db8::2")
		}),
		"link dev tun mtu 1480 up":                tun(func(*netlink.Tuntap) {}),
		"link dev tun mtu 1480 up non-persistent": tun(func(l *netlink.Tuntap) { l.NonPersist = true }),
		"link dev tun mtu 1480 up multi-queue":    tun(func(l *netlink.Tuntap) { l.Flags = netlink.TUNTAP_MULTI_QUEUE }),
		vtep + "up":                               vxlan(func(l *netlink.Vxlan) { l.Group = ip("0.0.0.0") }),
		vtep + "up group 239.0.0.1":               vxlan(func(l *netlink.Vxlan) { l.Group = ip("239.0.0.1") }),
		vtep + "up proxy":                         vxlan(func(l *netlink.Vxlan) { l.Proxy = true }),
		vtep + "up rsc":                           vxlan(func(l *netlink.Vxlan) { l.RSC = true }),
		vtep + "up l2miss":                        vxlan(func(l *netlink.Vxlan) { l.L2miss = true }),
		vtep + "up l3miss":                        vxlan(func(l *netlink.Vxlan) { l.L3miss = true }),
		vtep + "up external":                      vxlan(func(l *netlink.Vxlan) { l.FlowBased = true }),
		vtep + "learning gbp down unmarked": vxlan(func(l *netlink.Vxlan) {
			l.Learning, l.GBP,
				l.Flags, l.Alias = true, true, 0, ""
		}),
		"link dev bridge mtu 1480 address 00:00:00:00:00:00 up": &netlink.Bridge{LinkAttrs: attrs},
		"link dev wireguard mtu 1480 up":                        &netlink.Wireguard{LinkAttrs: attrs},
		"link dev of type dummy":                                &netlink.Dummy{LinkAttrs: attrs},
		"link dev of type tap":                                  tun(func(l *netlink.Tuntap) { l.Mode = netlink.TUNTAP_MODE_TAP }),
	} {
		if got := decodeLink(l, map[int]string{7: "eth0"}).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
