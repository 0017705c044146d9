package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// extra joins what an object has beyond what netstate models, so that it differs from every wanted object.
type extra []string

func (e *extra) add(on bool, format string, args ...any) {
	if on {
		*e = append(*e, fmt.Sprintf(format, args...))
	}
}

func (e extra) String() string { return strings.Join(e, " ") }

func decodeLink(l netlink.Link, names map[int]string) netstate.Object {
	a := l.Attrs()
	var e extra
	e.add(a.MasterIndex != 0, "master %s", names[a.MasterIndex])
	switch l := l.(type) {
	case *netlink.Vxlan:
		return decodeVXLAN(l, names, e)
	case *netlink.Bridge:
		e.add(l.VlanFiltering != nil && *l.VlanFiltering, "vlan_filtering")
		return netstate.Bridge{Name: a.Name, MTU: a.MTU, MAC: macOf(a.HardwareAddr), Up: isUp(a),
			Marked: a.Alias == netstate.Mark, Extra: e.String()}
	case *netlink.Tuntap:
		return decodeTun(l, e)
	case *netlink.Iptun:
		return decodeTunnel(l, names, e)
	case *netlink.Ip6tnl:
		return decodeTunnel6(l, e)
	case *netlink.Wireguard:
		return netstate.WireGuard{Name: a.Name, MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark, Extra: e.String()}
	}
	return netstate.OtherLink{Name: a.Name, Type: l.Type()}
}

func decodeVXLAN(l *netlink.Vxlan, names map[int]string, e extra) netstate.VXLAN {
	a := l.Attrs()
	e.add(l.Group != nil && !l.Group.IsUnspecified(), "group %s", l.Group)
	e.add(l.Proxy, "proxy")
	e.add(l.RSC, "rsc")
	e.add(l.L2miss, "l2miss")
	e.add(l.L3miss, "l3miss")
	e.add(l.FlowBased, "external")
	return netstate.VXLAN{
		Name: a.Name, VNI: l.VxlanId, Port: l.Port, Dev: names[l.VtepDevIndex], Local: addrOf(l.SrcAddr),
		MTU: a.MTU, MAC: macOf(a.HardwareAddr), Learning: l.Learning, GBP: l.GBP, Up: isUp(a),
		Marked: a.Alias == netstate.Mark, Extra: e.String(),
	}
}

func isUp(a *netlink.LinkAttrs) bool { return a.Flags&net.FlagUp != 0 }

// decodeAddr is false for link-local addresses: the kernel makes them.
func decodeAddr(dev string, a netlink.Addr) (netstate.Addr, bool) {
	p := addrPrefix(a.IPNet)
	if linkLocal(p.Addr()) {
		return netstate.Addr{}, false
	}
	var e extra
	e.add(a.Scope != unix.RT_SCOPE_UNIVERSE, "scope %d", a.Scope)
	e.add(a.Flags&unix.IFA_F_NOPREFIXROUTE != 0, "noprefixroute")
	e.add(a.Flags&unix.IFA_F_PERMANENT == 0, "valid_lft %d", a.ValidLft)
	o := netstate.Addr{Dev: dev, Prefix: p, NoDAD: a.Flags&unix.IFA_F_NODAD != 0, Extra: e.String()}
	if a.Peer != nil {
		o.Peer = addrPrefix(a.Peer)
	}
	return o, true
}

func macOf(h net.HardwareAddr) (m netstate.MAC) {
	copy(m[:], h)
	return m
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func addrPrefix(n *net.IPNet) netip.Prefix {
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), ones)
}
