package kernel

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// device is a link, and what netstate makes of it.
type device struct{ rtnl.Link }

// iflaInet6Conf is IFLA_INET6_CONF of linux/if_link.h.
const iflaInet6Conf = 2

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const skipStats = 1 << 3

// devices returns the links that own accepts, and the names of all by index.
func (k *Kernel) devices(own func(device) bool) (ours []device, names map[int]string, err error) {
	return listDevices(k.bulk, own)
}

func listDevices(conn *rtnl.Conn, own func(device) bool) (ours []device, names map[int]string, err error) {
	_, err = rtnl.Retry("links", func() (struct{}, error) {
		ours, names = nil, map[int]string{}
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
		return struct{}{}, conn.List(r, func(m []byte) error {
			d, err := parseDevice(m)
			if err != nil {
				return err
			}
			names[d.Index()] = d.Name()
			if own(d) {
				ours = append(ours, device{bytes.Clone(d.Link)})
			}
			return nil
		})
	})
	return ours, names, err
}

// device reads one link.
func (k *Kernel) device(name string) (d device, err error) {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	err = k.bulk.List(r, func(m []byte) (err error) {
		d, err = parseDevice(bytes.Clone(m))
		return err
	})
	return d, err
}

func parseDevice(m []byte) (device, error) {
	l, err := rtnl.ParseLink(m)
	return device{l}, err
}

// isEthernet reports whether the kernel's type of the device is ARPHRD_ETHER.
func (d device) isEthernet() bool { return d.Type() == unix.ARPHRD_ETHER }

func (d device) up() bool { return d.Flags()&unix.IFF_UP != 0 }

// operUnknown is IF_OPER_UNKNOWN of linux/if.h.
const operUnknown = 0

// running reports whether the device has a carrier. A bridge that never had a port says so too, and has none.
func (d device) running() bool {
	unknown := len(d.Attribute(unix.IFLA_OPERSTATE)) == 1 && d.Attribute(unix.IFLA_OPERSTATE)[0] == operUnknown
	return d.Flags()&unix.IFF_RUNNING != 0 && (d.Kind() != "bridge" || !unknown)
}

func (d device) marked() bool { return d.Alias() == netstate.Mark }

// made reports whether the device says that it is ours, and is of a kind that we make: an alias is anybody's to write, on a
// pod's port too. Its name says nothing, since somebody may have renamed it.
func (d device) made() bool { return d.marked() && slices.Contains(makes, d.Kind()) }

// makes are the kinds of the bridge and of the backends' devices.
var makes = []string{"bridge", "vxlan", "tun", "ipip", "ip6tnl", "wireguard"}

func (d device) number(id uint16) int { return int(rtnl.Number(d.Info(id))) }

func (d device) addr(ids ...uint16) netip.Addr {
	for _, id := range ids {
		if a, ok := netip.AddrFromSlice(d.Info(id)); ok {
			return a
		}
	}
	return netip.Addr{}
}

// Of linux/ipv6.h: places in the list of a device's IPv6 parameters.
const devconfForwarding, devconfAcceptRA = 0, 3

// conf6 returns one of the device's IPv6 parameters, 0 if it has no IPv6.
func (d device) conf6(place int) int {
	conf := d.Attribute(unix.IFLA_AF_SPEC, unix.AF_INET6, iflaInet6Conf)
	if len(conf) < 4*(place+1) {
		return 0
	}
	return rtnl.Int(conf[4*place:])
}

// acceptRA returns whether IPv6 router advertisements configure the device: 0 is never, 2 always, and 1 as long as the
// device does not forward.
func (d device) acceptRA() int { return d.conf6(devconfAcceptRA) }

// losesRA reports whether router advertisements configure the device, and would not if it forwarded.
func (d device) losesRA() bool {
	return d.acceptRA() == 1 && d.conf6(devconfForwarding) == 0 && d.Flags()&unix.IFF_LOOPBACK == 0
}

func (d device) mac() netstate.MAC { return macOf(d.Attribute(unix.IFLA_ADDRESS)) }

// decode returns the object. What it does not model is Extra, in the words of package attributes.
func (d device) decode(names map[int]string) netstate.Object {
	name, mtu, up, marked, kind := d.Name(), d.MTU(), d.up(), d.marked(), d.Kind()
	more := func() string { return d.extra(names) }
	switch kind {
	case "vxlan":
		return netstate.VXLAN{
			Name: name, VNI: d.number(unix.IFLA_VXLAN_ID), Dev: names[d.number(unix.IFLA_VXLAN_LINK)],
			Port:  int(binary.BigEndian.Uint16(append(d.Info(unix.IFLA_VXLAN_PORT), 0, 0))),
			Local: d.addr(unix.IFLA_VXLAN_LOCAL, unix.IFLA_VXLAN_LOCAL6), MTU: mtu, MAC: d.mac(), Up: up, Marked: marked,
			Learning: d.number(unix.IFLA_VXLAN_LEARNING) != 0, GBP: d.Info(unix.IFLA_VXLAN_GBP) != nil, Extra: more(),
		}
	case "bridge":
		return netstate.Bridge{Name: name, MTU: mtu, MAC: d.mac(), Up: up, Marked: marked, Extra: more()}
	case "tun":
		if d.number(nl.IFLA_TUN_TYPE) != unix.IFF_TUN {
			return netstate.OtherLink{Name: name, Type: "tap"}
		}
		return netstate.Tun{Name: name, MTU: mtu, Up: up, Marked: marked, Extra: more()}
	case "ipip":
		return netstate.Tunnel{Name: name, Local: d.addr(nl.IFLA_IPTUN_LOCAL), MTU: mtu, Up: up, Marked: marked,
			Extra: more()}
	case "ip6tnl":
		external := d.Info(nl.IFLA_IPTUN_COLLECT_METADATA) != nil
		return netstate.Tunnel{Name: name, External: external, MTU: mtu, Up: up, Marked: marked, Extra: more()}
	case "wireguard":
		return netstate.WireGuard{Name: name, MTU: mtu, Up: up, Marked: marked, Extra: more()}
	case "":
		kind = "device"
	}
	return netstate.OtherLink{Name: name, Type: kind}
}
