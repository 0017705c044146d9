package kernel

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// message is a link called dev, with our mark, as the kernel sends it.
func message(kind string, flags uint32, attributes ...[]byte) device {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[8:], flags)
	info := attr(unix.IFLA_INFO_KIND, nl.ZeroTerminated(kind)...)
	data := slices.Concat(attributes...)
	if kind != "wireguard" {
		info = append(info, attr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data...)...)
		data = nil
	}
	return device{slices.Concat(header, attr(unix.IFLA_IFNAME, nl.ZeroTerminated("dev")...), attr(unix.IFLA_MTU, number(1480)...),
		attr(unix.IFLA_IFALIAS, nl.ZeroTerminated(netstate.Mark)...), data,
		attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, info...))}
}

// TestDecodeDevice: what a device has that Twill does not give it is said, so that it never looks intact.
func TestDecodeDevice(t *testing.T) {
	const tunnel, ether = unix.IFF_UP | unix.IFF_NOARP, unix.IFF_UP | unix.IFF_MULTICAST
	local := attr(nl.IFLA_IPTUN_LOCAL, ip("192.0.2.1")...)
	ipip := func(more ...[]byte) device {
		return message("ipip", tunnel, local, attr(nl.IFLA_IPTUN_PMTUDISC, 1), attr(nl.IFLA_IPTUN_PROTO, unix.IPPROTO_IPIP),
			slices.Concat(more...))
	}
	ip6tnl := func(more ...[]byte) device {
		return message("ip6tnl", tunnel, attr(nl.IFLA_IPTUN_COLLECT_METADATA), slices.Concat(more...))
	}
	tun := func(mode byte, more ...[]byte) device {
		return message("tun", tunnel|unix.IFF_MULTICAST, attr(nl.IFLA_TUN_TYPE, mode), slices.Concat(more...))
	}
	vxlan := func(more ...[]byte) device {
		return message("vxlan", ether, attr(unix.IFLA_VXLAN_ID, number(1)...), attr(unix.IFLA_VXLAN_LINK, number(7)...),
			attr(unix.IFLA_VXLAN_LOCAL, ip("192.0.2.1")...), attr(unix.IFLA_VXLAN_PORT, 0x21, 0x18), slices.Concat(more...))
	}
	br := func(id int, value ...byte) device { return message("bridge", ether, attr(id, value...)) }
	learn := attr(unix.IFLA_VXLAN_LEARNING, 1)
	const vtep = "link dev vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472 mtu 1480 address 00:00:00:00:00:00 "
	const four, six = "link dev ipip local 192.0.2.1 mtu 1480 up", "link dev ip6tnl external mtu 1480 up"
	const bridge = "link dev bridge mtu 1480 address 00:00:00:00:00:00 up"
	for want, d := range map[string]device{
		four:                       ipip(),
		four + " dev eth0":         ipip(attr(nl.IFLA_IPTUN_LINK, number(7)...)),
		four + " remote 192.0.2.2": ipip(attr(nl.IFLA_IPTUN_REMOTE, ip("192.0.2.2")...)),
		four + " ttl 3":            ipip(attr(nl.IFLA_IPTUN_TTL, 3)),
		four + " tos 1":            ipip(attr(nl.IFLA_IPTUN_TOS, 1), attr(nl.IFLA_IPTUN_REMOTE, 0, 0, 0, 0)),
		four + " external 1":       ipip(attr(nl.IFLA_IPTUN_COLLECT_METADATA)),
		four + " encap 1":          ipip(attr(nl.IFLA_IPTUN_ENCAP_TYPE, 1, 0)),
		"link dev ipip local 192.0.2.1 mtu 1480 up pmtudisc 0 mode 0": message("ipip", tunnel, local,
			attr(nl.IFLA_IPTUN_PMTUDISC, 0), attr(nl.IFLA_IPTUN_PROTO, 0)),
		six:              ip6tnl(),
		six + " mode 41": ip6tnl(attr(nl.IFLA_IPTUN_PROTO, 41)),
		six + " encap 1": ip6tnl(attr(nl.IFLA_IPTUN_ENCAP_TYPE, 1, 0)),
		"link dev ipip local invalid IP mtu 1480 up": message("ip6tnl", tunnel,
			attr(nl.IFLA_IPTUN_LOCAL, ip("2001:db8::1")...)),
		"link dev tun mtu 1480 up":                        tun(1, attr(nl.IFLA_TUN_PERSIST, 1)),
		"link dev tun mtu 1480 up persist 0":              tun(1, attr(nl.IFLA_TUN_PERSIST, 0)),
		"link dev tun mtu 1480 up multi_queue 1":          tun(1, attr(nl.IFLA_TUN_MULTI_QUEUE, 1)),
		"link dev of type tap":                            tun(2),
		vtep + "up":                                       vxlan(attr(unix.IFLA_VXLAN_GROUP, 0, 0, 0, 0)),
		vtep + "up group 239.0.0.1":                       vxlan(attr(unix.IFLA_VXLAN_GROUP, 239, 0, 0, 1)),
		vtep + "up group ff05::1":                         vxlan(attr(unix.IFLA_VXLAN_GROUP6, ip("ff05::1")...)),
		vtep + "up proxy 1":                               vxlan(attr(unix.IFLA_VXLAN_PROXY, 1)),
		vtep + "up flowlabel 0x5":                         vxlan(attr(unix.IFLA_VXLAN_LABEL, 0, 0, 0, 5)),
		vtep + "up srcport 0x3e807d0":                     vxlan(attr(unix.IFLA_VXLAN_PORT_RANGE, 3, 0xe8, 7, 0xd0)),
		vtep + "up udpcsum 0":                             vxlan(attr(unix.IFLA_VXLAN_UDP_CSUM, 0)),
		vtep + "up gpe 1":                                 vxlan(attr(unix.IFLA_VXLAN_GPE)),
		vtep + "learning gbp up":                          vxlan(learn, attr(unix.IFLA_VXLAN_GBP)),
		bridge + " vlan_filtering 1":                      br(unix.IFLA_BR_VLAN_FILTERING, 1),
		bridge:                                            message("bridge", ether),
		bridge + " stp_state 1":                           br(unix.IFLA_BR_STP_STATE, number(1)...),
		bridge + " group_address 0x180c2000004":           br(unix.IFLA_BR_GROUP_ADDR, 1, 0x80, 0xc2, 0, 0, 4),
		bridge + " boolopt 1":                             br(unix.IFLA_BR_MULTI_BOOLOPT, slices.Concat(number(1), number(31))...),
		bridge + " noarp 1 multicast 0":                   message("bridge", tunnel),
		"link dev wireguard mtu 1480 up":                  message("wireguard", tunnel),
		"link dev wireguard mtu 1480 up master eth0":      message("wireguard", tunnel, attr(unix.IFLA_MASTER, number(7)...)),
		"link dev wireguard mtu 1480 up protodown 1":      message("wireguard", tunnel, attr(unix.IFLA_PROTO_DOWN, 1)),
		"link dev wireguard mtu 1480 down noarp 0 mode 1": message("wireguard", 0, attr(unix.IFLA_LINKMODE, 1)),
		"link dev of type dummy":                          message("dummy", ether),
	} {
		if got := d.decode(map[int]string{7: "eth0"}).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if _, err := parseDevice(make([]byte, 15)); err == nil {
		t.Error("a link of 15 bytes was read")
	}
}

// TestRight: what is put back is as long as what is there, and in its byte order.
func TestRight(t *testing.T) {
	for _, d := range []device{
		message("vxlan", unix.IFF_MULTICAST, attr(unix.IFLA_VXLAN_LABEL, 0, 0, 0, 5)),
		message("vxlan", unix.IFF_MULTICAST, attr(unix.IFLA_VXLAN_GROUP6, ip("ff05::1")...)),
		message("bridge", unix.IFF_MULTICAST, attr(unix.IFLA_BR_GROUP_ADDR, 1, 0x80, 0xc2, 0, 0, 4)),
		message("bridge", unix.IFF_MULTICAST, attr(unix.IFLA_BR_VLAN_PROTOCOL, 0x88, 0xa8)),
		message("bridge", unix.IFF_MULTICAST, attr(unix.IFLA_BR_PRIORITY, 1, 0)),
		message("bridge", unix.IFF_MULTICAST, attr(unix.IFLA_BR_AGEING_TIME, number(0)...)),
		message("bridge", unix.IFF_MULTICAST, attr(unix.IFLA_BR_MCAST_QUERY_INTVL, make([]byte, 8)...)),
	} {
		all := d.deviations()
		if len(all) != 1 {
			t.Fatalf("%s: %d deviations, want one", d.decode(nil), len(all))
		}
		v := all[0]
		if right := v.right(); len(right) != len(v.value) || differs(v.Attribute, right) {
			t.Errorf("%s is put back as %x", v.Word, right)
		}
	}
	opts := message("bridge", unix.IFF_MULTICAST,
		attr(unix.IFLA_BR_MULTI_BOOLOPT, slices.Concat(number(1), number(31))...))
	if got, want := opts.deviations()[0].right(), slices.Concat(number(0), number(1)); !slices.Equal(got, want) {
		t.Errorf("the options are put back as %x, want %x", got, want)
	}
}
