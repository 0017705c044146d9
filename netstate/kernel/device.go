package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// device is a link as the kernel sends it: struct ifinfomsg and attributes.
type device []byte

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
			names[d.index()] = d.name()
			if own(d) {
				ours = append(ours, bytes.Clone(d))
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
	if len(m) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("a link of %d bytes: want at least %d", len(m), unix.SizeofIfInfomsg)
	}
	return m, nil
}

func (d device) index() int { return intOf(d[4:]) }

func (d device) flags() uint32 { return binary.NativeEndian.Uint32(d[8:]) }

// isEthernet reports whether the kernel's type of the device is ARPHRD_ETHER.
func (d device) isEthernet() bool { return binary.NativeEndian.Uint16(d[2:]) == unix.ARPHRD_ETHER }

func (d device) up() bool { return d.flags()&unix.IFF_UP != 0 }

// operUnknown is IF_OPER_UNKNOWN of linux/if.h.
const operUnknown = 0

// running reports whether the device has a carrier. A bridge that never had a port says so too, and has none.
func (d device) running() bool {
	unknown := len(d.attribute(unix.IFLA_OPERSTATE)) == 1 && d.attribute(unix.IFLA_OPERSTATE)[0] == operUnknown
	return d.flags()&unix.IFF_RUNNING != 0 && (d.kind() != "bridge" || !unknown)
}

// attribute returns the value of an attribute, or of one nested in it, and nil if there is none.
func (d device) attribute(path ...uint16) []byte {
	return rtnl.Attribute(d, unix.SizeofIfInfomsg, path...)
}

func (d device) text(path ...uint16) string { return unix.ByteSliceToString(d.attribute(path...)) }

func (d device) name() string { return d.text(unix.IFLA_IFNAME) }

func (d device) marked() bool { return d.text(unix.IFLA_IFALIAS) == netstate.Mark }

// made reports whether the device says that it is ours, and is of a kind that we make: an alias is anybody's to write, on a
// pod's port too. Its name says nothing, since somebody may have renamed it.
func (d device) made() bool { return d.marked() && slices.Contains(makes, d.kind()) }

// makes are the kinds of the bridge and of the backends' devices.
var makes = []string{"bridge", "vxlan", "tun", "ipip", "ip6tnl", "wireguard"}

func (d device) kind() string { return d.text(unix.IFLA_LINKINFO, unix.IFLA_INFO_KIND) }

// info returns an attribute of the device's type.
func (d device) info(id uint16) []byte {
	return d.attribute(unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, id)
}

func (d device) number(id uint16) int { return int(numberOf(d.info(id))) }

func (d device) addr(ids ...uint16) netip.Addr {
	for _, id := range ids {
		if a, ok := netip.AddrFromSlice(d.info(id)); ok {
			return a
		}
	}
	return netip.Addr{}
}

func (d device) master() int { return intOf(d.attribute(unix.IFLA_MASTER)) }

func (d device) mtu() int { return intOf(d.attribute(unix.IFLA_MTU)) }

// Of linux/ipv6.h: places in the list of a device's IPv6 parameters.
const devconfForwarding, devconfAcceptRA = 0, 3

// conf6 returns one of the device's IPv6 parameters, 0 if it has no IPv6.
func (d device) conf6(place int) int {
	conf := d.attribute(unix.IFLA_AF_SPEC, unix.AF_INET6, iflaInet6Conf)
	if len(conf) < 4*(place+1) {
		return 0
	}
	return intOf(conf[4*place:])
}

// acceptRA returns whether IPv6 router advertisements configure the device: 0 is never, 2 always, and 1 as long as the
// device does not forward.
func (d device) acceptRA() int { return d.conf6(devconfAcceptRA) }

// losesRA reports whether router advertisements configure the device, and would not if it forwarded.
func (d device) losesRA() bool {
	return d.acceptRA() == 1 && d.conf6(devconfForwarding) == 0 && d.flags()&unix.IFF_LOOPBACK == 0
}

func (d device) mac() netstate.MAC { return macOf(d.attribute(unix.IFLA_ADDRESS)) }

// numberOf reads a number in the machine's byte order. An attribute without bytes, which says something by being
// there, is 1.
func numberOf(value []byte) uint64 {
	switch len(value) {
	case 1:
		return uint64(value[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(value))
	case 4:
		return uint64(binary.NativeEndian.Uint32(value))
	case 8:
		return binary.NativeEndian.Uint64(value)
	}
	if value == nil {
		return 0
	}
	return 1
}

// decode returns the object. What it does not model is Extra, in the words of package attributes.
func (d device) decode(names map[int]string) netstate.Object {
	name, mtu, up, marked, kind := d.name(), d.mtu(), d.up(), d.marked(), d.kind()
	more := func() string { return d.extra(names) }
	switch kind {
	case "vxlan":
		return netstate.VXLAN{
			Name: name, VNI: d.number(unix.IFLA_VXLAN_ID), Dev: names[d.number(unix.IFLA_VXLAN_LINK)],
			Port:  int(binary.BigEndian.Uint16(append(d.info(unix.IFLA_VXLAN_PORT), 0, 0))),
			Local: d.addr(unix.IFLA_VXLAN_LOCAL, unix.IFLA_VXLAN_LOCAL6), MTU: mtu, MAC: d.mac(), Up: up, Marked: marked,
			Learning: d.number(unix.IFLA_VXLAN_LEARNING) != 0, GBP: d.info(unix.IFLA_VXLAN_GBP) != nil, Extra: more(),
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
		external := d.info(nl.IFLA_IPTUN_COLLECT_METADATA) != nil
		return netstate.Tunnel{Name: name, External: external, MTU: mtu, Up: up, Marked: marked, Extra: more()}
	case "wireguard":
		return netstate.WireGuard{Name: name, MTU: mtu, Up: up, Marked: marked, Extra: more()}
	case "":
		kind = "device"
	}
	return netstate.OtherLink{Name: name, Type: kind}
}
