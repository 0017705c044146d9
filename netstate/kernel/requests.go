package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// inBulk reports whether there can be thousands of a kind's objects: they are written many at a time, by request.
func inBulk(k netstate.Kind) bool {
	return k == netstate.KindNeigh || k == netstate.KindFDB || k == netstate.KindRoute
}

// request returns the message that carries out c.
func (a *applier) request(c netstate.Change) (*nl.NetlinkRequest, error) {
	object, del, flags := c.Want, 0, unix.NLM_F_CREATE|unix.NLM_F_REPLACE
	if object == nil {
		object, del, flags = c.Was, 1, 0 // RTM_DEL… follows RTM_NEW…
	}
	switch o := object.(type) {
	case netstate.Neigh:
		return a.neigh(unix.RTM_NEWNEIGH+del, flags, o.Dev, &netlink.Ndmsg{Family: domainOf(o.IP)}, o.IP, o.MAC)
	case netstate.FDB:
		dst := o.Dst
		switch {
		case del == 1 && o.Extra != "" && a.replaced(o):
			return nil, errNoDevice
		case del == 1 && (o.Extra != "" || !o.Dst.IsValid()):
			dst = netip.Addr{} // by its MAC alone: the kernel finds a destination only by all of its attributes
		case del == 0 && !o.MAC.IsUnicast():
			// The kernel keeps one destination for a unicast MAC and replaces it whole (append to an existing entry does
			// nothing and reports nothing, seen on 6.18). Only a group address or zero has several.
			flags = unix.NLM_F_CREATE | unix.NLM_F_APPEND
		}
		m := &netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF}
		return a.neigh(unix.RTM_NEWNEIGH+del, flags, o.Dev, m, dst, o.MAC)
	case netstate.BridgeFDB:
		return a.bridgeFDB(unix.RTM_NEWNEIGH+del, flags, o)
	case netstate.Route:
		if del == 0 && a.appends(c) {
			flags = unix.NLM_F_CREATE | unix.NLM_F_APPEND
		}
		return a.route(unix.RTM_NEWROUTE+del, flags, o)
	}
	return nil, fmt.Errorf("a %s is not an object that is written by one request", object.Key().Kind)
}

// neigh returns a request about a permanent neighbour or FDB entry.
func (a *applier) neigh(
	kind, flags int, dev string, m *netlink.Ndmsg, dst netip.Addr, mac netstate.MAC,
) (*nl.NetlinkRequest, error) {
	l, err := a.link(dev)
	if err != nil {
		return nil, err
	}
	m.Index, m.State = uint32(l.Attrs().Index), unix.NUD_PERMANENT
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddData(m)
	if dst.IsValid() {
		r.AddData(nl.NewRtAttr(unix.NDA_DST, dst.AsSlice()))
	}
	r.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac[:]))
	return r, nil
}

// route returns a request about a route. To delete, "no type" and "scope nowhere" stand for any: the kernel
// identifies a route by destination, metric, TOS, protocol and next hop, and would not find one whose type or scope
// differs from what is said.
func (a *applier) route(kind, flags int, o netstate.Route) (*nl.NetlinkRequest, error) {
	m := nl.RtMsg{RtMsg: unix.RtMsg{Family: domainOf(o.Dst.Addr()), Dst_len: uint8(o.Dst.Bits()), Tos: uint8(o.TOS),
		Table: unix.RT_TABLE_MAIN, Protocol: uint8(o.Protocol), Type: unix.RTN_UNICAST}}
	del := kind == unix.RTM_DELROUTE
	switch {
	case del:
		m.Type, m.Scope = unix.RTN_UNSPEC, unix.RT_SCOPE_NOWHERE
	case o.Blackhole:
		m.Type = unix.RTN_BLACKHOLE
	case !o.Via.IsValid():
		m.Scope = unix.RT_SCOPE_LINK
	case o.Onlink:
		m.Flags = unix.RTNH_F_ONLINK
	}
	if o.Table != 0 {
		m.Table = unix.RT_TABLE_UNSPEC
	}
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddData(&m)
	if o.Table != 0 {
		r.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(o.Table))))
	}
	r.AddData(nl.NewRtAttr(unix.RTA_DST, o.Dst.Addr().AsSlice()))
	switch {
	case o.Outer.IsValid() && del: // the kernel does not compare it
	case o.Outer.IsValid():
		// Hop limit 0 is the inner packet's, as with ipip. Encode has no errors.
		encap, _ := (&netlink.IP6tnlEncap{Src: o.Outer.AsSlice(), Dst: o.Via.AsSlice()}).Encode()
		r.AddData(nl.NewRtAttr(unix.RTA_ENCAP_TYPE, nl.Uint16Attr(nl.LWTUNNEL_ENCAP_IP6)))
		r.AddData(nl.NewRtAttr(unix.RTA_ENCAP|unix.NLA_F_NESTED, encap))
	case o.Via.IsValid():
		r.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, o.Via.AsSlice()))
	}
	if o.Src.IsValid() {
		r.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, o.Src.AsSlice()))
	}
	if o.MTU > 0 && !del {
		r.AddData(nl.NewRtAttr(unix.RTA_METRICS|unix.NLA_F_NESTED, nl.NewRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(o.MTU))).Serialize()))
	}
	if o.Metric > 0 {
		r.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(o.Metric))))
	}
	if o.Dev != "" && !o.Blackhole { // an observed multipath route, to be deleted, has no device
		l, err := a.link(o.Dev)
		if err != nil {
			return nil, err
		}
		r.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(l.Attrs().Index))))
	}
	return r, nil
}

// domains are the kernel's numbers of the families.
var domains = map[netstate.Family]byte{netstate.IPv4: unix.AF_INET, netstate.IPv6: unix.AF_INET6}

func domainOf(a netip.Addr) byte { return domains[netstate.FamilyOf(a)] }
