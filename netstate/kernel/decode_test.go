package kernel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

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
	const link = unix.RT_SCOPE_LINK
	four := slices.Concat(set(head(unix.AF_INET, 24), 6, link), attr(unix.RTA_TABLE, number(254)...),
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
		"IPv4": {four, "route 10.244.2.0/24 dev f"},
		"IPv6": {six, "route fc00:2::/64 dev f"},
		"default": {slices.Concat(set(head(unix.AF_INET, 0), 6, link),
			attr(unix.RTA_OIF, number(8)...)), "route 0.0.0.0/0 dev eth0"},
		"default IPv6": {slices.Concat(head(unix.AF_INET6, 0), attr(unix.RTA_OIF, number(8)...)),
			"route ::/0 dev eth0 metric 0"},
		"gateway": {slices.Concat(set(four, 6, unix.RT_SCOPE_UNIVERSE), attr(unix.RTA_GATEWAY, ip("192.0.2.2")...),
			attr(unix.RTA_PREFSRC, ip("192.0.2.1")...)), "route 10.244.2.0/24 via 192.0.2.2 dev f src 192.0.2.1"},
		"onlink":    {set(four, 8, unix.RTNH_F_ONLINK), "route 10.244.2.0/24 dev f onlink"},
		"dead":      {set(four, 8, unix.RTNH_F_DEAD), "route 10.244.2.0/24 dev f"},
		"tos":       {set(four, 3, 16), "route 10.244.2.0/24 dev f tos 0x10"},
		"static":    {set(four, 5, unix.RTPROT_STATIC), "route 10.244.2.0/24 dev f proto 4"},
		"blackhole": {set(four, 7, unix.RTN_BLACKHOLE), "route blackhole 10.244.2.0/24"},
		"prohibit":  {set(four, 7, unix.RTN_PROHIBIT), "route 10.244.2.0/24 dev f type 8"},
		"link scope": {slices.Concat(four, attr(unix.RTA_GATEWAY, ip("192.0.2.2")...)),
			"route 10.244.2.0/24 via 192.0.2.2 dev f scope link"},
		"link scope, no gateway":   {four, "route 10.244.2.0/24 dev f"},
		"global scope, no gateway": {set(four, 6, unix.RT_SCOPE_UNIVERSE), "route 10.244.2.0/24 dev f scope universe"},
		"link scope, IPv6":         {set(six, 6, link), "route fc00:2::/64 dev f scope link"},
		"table local": {set(slices.Concat(four, attr(unix.RTA_TABLE, number(255)...)), 4, 255),
			"route 10.244.2.0/24 dev f table 255"},
		"table 1000": {set(slices.Concat(four, attr(unix.RTA_TABLE, number(1000)...)), 4, unix.RT_TABLE_COMPAT),
			"route 10.244.2.0/24 dev f table 1000"},
		"pervasive": {set(four, 8, unix.RTNH_F_PERVASIVE), "route 10.244.2.0/24 dev f pervasive"},
		"preferred": {slices.Concat(six, attr(unix.RTA_PREF, 1)), "route fc00:2::/64 dev f pref 1"},
		"expires": {slices.Concat(six, attr(unix.RTA_CACHEINFO, set(make([]byte, 32), 8, 1)...)),
			"route fc00:2::/64 dev f expires"},
		"realm":             {slices.Concat(four, attr(unix.RTA_FLOW, number(7)...)), "route 10.244.2.0/24 dev f realm 7"},
		"a next hop object": {slices.Concat(four, attr(30, number(5)...)), "route 10.244.2.0/24 dev f nhid 5"},
		"congestion control": {slices.Concat(four, attr(unix.RTA_METRICS, attr(unix.RTAX_CC_ALGO, 'b', 'b', 'r', 0)...)),
			"route 10.244.2.0/24 dev f congctl bbr"},
		"an unknown metric": {slices.Concat(four, attr(unix.RTA_METRICS, attr(99, number(1)...)...)),
			"route 10.244.2.0/24 dev f metric 99"},
		"metrics": {append(slices.Clone(four), attr(unix.RTA_METRICS,
			slices.Concat(attr(unix.RTAX_MTU, number(900)...), attr(unix.RTAX_ADVMSS, number(800)...),
				attr(unix.RTAX_WINDOW, number(1)...), attr(unix.RTAX_MTU,
					1))...)...), "route 10.244.2.0/24 dev f mtu 1 advmss 800 window 1"},
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
