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

// decodeNeigh is false for entries that the kernel learned: only permanent ones are ours.
func decodeNeigh(dev string, n netlink.Neigh) (netstate.Neigh, bool) {
	o := netstate.Neigh{Dev: dev, IP: addrOf(n.IP), MAC: macOf(n.HardwareAddr)}
	return o, n.State&netlink.NUD_PERMANENT != 0 && !linkLocal(o.IP)
}

func decodeRoute(r netlink.Route, dst netip.Prefix, names map[int]string) netstate.Route {
	var e extra
	e.add(len(r.MultiPath) > 0, "multipath %d", len(r.MultiPath))
	e.add(r.Src != nil, "src %s", r.Src)
	e.add(r.MTU != 0, "mtu %d", r.MTU)
	e.add(r.AdvMSS != 0, "advmss %d", r.AdvMSS)
	e.add(r.Encap != nil, "encap")
	e.add(r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_BLACKHOLE, "type %d", r.Type)
	e.add(r.Type == unix.RTN_UNICAST && r.Gw != nil && r.Scope != netlink.SCOPE_UNIVERSE, "scope %s", r.Scope)
	o := netstate.Route{Dst: dst, Via: addrOf(r.Gw), Metric: r.Priority, Onlink: r.Flags&unix.RTNH_F_ONLINK != 0,
		Protocol: int(r.Protocol), TOS: r.Tos, Blackhole: r.Type == unix.RTN_BLACKHOLE, Extra: e.String()}
	if !o.Blackhole { // IPv6 puts blackholes on lo
		o.Dev = names[r.LinkIndex]
	}
	return o
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

// prefixOf is a route's destination; nil is the default route of family.
func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n != nil {
		return addrPrefix(n)
	}
	if family == unix.AF_INET {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
