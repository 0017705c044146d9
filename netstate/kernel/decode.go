package kernel

import (
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// extra collects what an object has beyond what netstate models, so that it differs from every wanted object.
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
		Name: a.Name, VNI: l.VxlanId, Port: l.Port, Dev: names[l.VtepDevIndex], Local: rtnl.Addr(l.SrcAddr),
		MTU: a.MTU, MAC: macOf(a.HardwareAddr), Learning: l.Learning, GBP: l.GBP, Up: isUp(a),
		Marked: a.Alias == netstate.Mark, Extra: e.String(),
	}
}

func decodeTun(l *netlink.Tuntap, e extra) netstate.Object {
	a := l.Attrs()
	if l.Mode != netlink.TUNTAP_MODE_TUN {
		return netstate.OtherLink{Name: a.Name, Type: "tap"}
	}
	e.add(l.NonPersist, "non-persistent")
	e.add(l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0, "multi-queue")
	return netstate.Tun{Name: a.Name, MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

func decodeTunnel(l *netlink.Iptun, names map[int]string, e extra) netstate.Object {
	a := l.Attrs()
	remote := rtnl.Addr(l.Remote)
	e.add(a.ParentIndex != 0, "dev %s", names[a.ParentIndex])
	e.add(remote.IsValid() && !remote.IsUnspecified(), "remote %s", remote)
	e.add(l.Ttl != 0, "ttl %d", l.Ttl)
	e.add(l.Tos != 0, "tos %#x", l.Tos)
	e.add(l.PMtuDisc != 1, "nopmtudisc")
	e.add(l.EncapType != 0, "encap %d", l.EncapType)
	e.add(l.FlowBased, "external")
	e.add(l.Proto != unix.IPPROTO_IPIP, "proto %d", l.Proto)
	return netstate.Tunnel{Name: a.Name, Local: rtnl.Addr(l.Local), MTU: a.MTU, Up: isUp(a),
		Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

func decodeTunnel6(l *netlink.Ip6tnl, e extra) netstate.Object {
	a := l.Attrs()
	e.add(!l.FlowBased, "local %s remote %s", rtnl.Addr(l.Local), rtnl.Addr(l.Remote))
	e.add(l.Proto != 0, "proto %d", l.Proto)
	e.add(l.EncapType != 0, "encap %d", l.EncapType)
	return netstate.Tunnel{Name: a.Name, External: l.FlowBased, MTU: a.MTU, Up: isUp(a),
		Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

func isUp(a *netlink.LinkAttrs) bool { return a.Flags&net.FlagUp != 0 }

// decodeAddr reports false for link-local addresses: the kernel makes them.
func decodeAddr(dev string, a netlink.Addr) (netstate.Addr, bool) {
	p := rtnl.Prefix(a.IPNet)
	if linkLocal(p.Addr()) {
		return netstate.Addr{}, false
	}
	var e extra
	e.add(a.Scope != unix.RT_SCOPE_UNIVERSE, "scope %d", a.Scope)
	e.add(a.Flags&unix.IFA_F_NOPREFIXROUTE != 0, "noprefixroute")
	e.add(a.Flags&unix.IFA_F_PERMANENT == 0, "valid_lft %d", a.ValidLft)
	o := netstate.Addr{Dev: dev, Prefix: p, NoDAD: a.Flags&unix.IFA_F_NODAD != 0, Extra: e.String()}
	if a.Peer != nil {
		o.Peer = rtnl.Prefix(a.Peer)
	}
	return o, true
}

func macOf(h net.HardwareAddr) (m netstate.MAC) {
	copy(m[:], h)
	return m
}
