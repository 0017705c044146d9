package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// putAddr adds or changes an address. One whose scope or peer differs is another address to the kernel: the
// old one goes first.
func (a *applier) putAddr(want netstate.Addr, was netstate.Object) error {
	l, err := a.link(want.Dev)
	if err != nil {
		return err
	}
	if was, ok := was.(netstate.Addr); ok && (was.Extra != "" || was.Peer.IsValid()) {
		if err := ignoreAbsent(a.deleteAddr(was)); err != nil {
			return err
		}
	}
	addr := &netlink.Addr{IPNet: ipNet(want.Prefix), Scope: unix.RT_SCOPE_UNIVERSE}
	if want.NoDAD {
		addr.Flags = unix.IFA_F_NODAD
	}
	return a.nl.AddrReplace(l, addr)
}

func (a *applier) deleteAddr(o netstate.Addr) error {
	l, err := a.link(o.Dev)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(o.Prefix)}
	if o.Peer.IsValid() {
		addr.Peer = ipNet(o.Peer)
	}
	return a.nl.AddrDel(l, addr)
}

// putNeigh writes a neighbour or an FDB entry. The kernel keeps one destination for a unicast MAC and replaces it
// whole (append to an existing entry does nothing and says nothing, seen on 6.18); only a group address or
// zero has several.
func (a *applier) putNeigh(want netstate.Object) error {
	n, err := a.encodeNeigh(want)
	if err != nil {
		return err
	}
	if fdb, ok := want.(netstate.FDB); ok && !fdb.MAC.IsUnicast() {
		return a.nl.NeighAppend(n)
	}
	return a.nl.NeighSet(n)
}

// deleteNeigh deletes an FDB entry with its attributes beyond MAC and destination by MAC alone: the kernel
// finds a destination only by all of them.
func (a *applier) deleteNeigh(o netstate.Object) error {
	n, err := a.encodeNeigh(o)
	if err != nil {
		return err
	}
	if fdb, ok := o.(netstate.FDB); ok && (fdb.Extra != "" || !fdb.Dst.IsValid()) {
		n.IP = net.IPv4zero
	}
	return a.nl.NeighDel(n)
}

func (a *applier) encodeNeigh(o netstate.Object) (*netlink.Neigh, error) {
	l, err := a.link(o.Key().Name)
	if err != nil {
		return nil, err
	}
	n := &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT}
	switch o := o.(type) {
	case netstate.Neigh:
		n.Family, n.IP, n.HardwareAddr = family(o.IP), o.IP.AsSlice(), net.HardwareAddr(o.MAC[:])
	case netstate.FDB:
		n.Family, n.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
		n.HardwareAddr = net.HardwareAddr(o.MAC[:])
		if o.Dst.IsValid() {
			n.IP = o.Dst.AsSlice()
		}
	}
	return n, nil
}

// putRoute adds or replaces a route. IPv6 refuses (EINVAL, seen on 6.1 and 6.18) to replace a route by one with
// an onlink gateway that resolves through another device now, and never replaces several next hops by one:
// there the old route goes first.
func (a *applier) putRoute(want netstate.Route, was netstate.Object) error {
	r, err := a.encodeRoute(want)
	if err != nil {
		return err
	}
	err = a.nl.RouteReplace(r)
	if old, ok := was.(netstate.Route); ok && err != nil {
		if err := ignoreAbsent(a.deleteRoute(old)); err != nil {
			return err
		}
		err = a.nl.RouteReplace(r)
	}
	return explainGateway(want, err)
}

// explainGateway says what "Nexthop has invalid gateway" (host-gw towards a peer behind a router) means.
func explainGateway(r netstate.Route, err error) error {
	unreachable := errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)
	if unreachable && r.Via.IsValid() && !r.Onlink && !r.Outer.IsValid() {
		return fmt.Errorf("gateway %s is not on the same L2 segment as %s, use the vxlan backend to reach it: %w", r.Via, r.Dev, err)
	}
	return err
}

func (a *applier) deleteRoute(o netstate.Route) error {
	r, err := a.encodeRoute(o)
	if err != nil {
		return err
	}
	// A route is identified by destination, metric, TOS, protocol and next hop. The kernel takes "no type" and "scope
	// nowhere" as any, and would not find a route whose type or scope differs from what is said here.
	r.Encap, r.Flags, r.Type, r.Scope = nil, 0, unix.RTN_UNSPEC, netlink.SCOPE_NOWHERE
	return a.nl.RouteDel(r)
}

func (a *applier) encodeRoute(o netstate.Route) (*netlink.Route, error) {
	r := &netlink.Route{Dst: ipNet(o.Dst), Priority: o.Metric, Protocol: netlink.RouteProtocol(o.Protocol), Tos: o.TOS,
		Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Family: family(o.Dst.Addr())}
	switch {
	case o.Outer.IsValid():
		r.Encap = encapOf(o)
	case o.Via.IsValid():
		r.Gw = o.Via.AsSlice()
	}
	if o.Src.IsValid() {
		r.Src = o.Src.AsSlice()
	}
	if o.Onlink {
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	if o.Blackhole {
		r.Type = unix.RTN_BLACKHOLE
		return r, nil
	}
	if o.Dev == "" {
		return r, nil // an observed multipath route, to be deleted
	}
	l, err := a.link(o.Dev)
	if err != nil {
		return nil, err
	}
	r.LinkIndex = l.Attrs().Index
	if !o.Via.IsValid() {
		r.Scope = netlink.SCOPE_LINK
	}
	return r, nil
}

func family(a netip.Addr) int { return int(domains[netstate.FamilyOf(a)]) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
