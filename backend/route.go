package backend

import (
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// DirectRoute leads to a peer's pods through the peer's own address: what host-gw does, and vxlan with
// DirectRouting. See RouteMetric for spread.
func DirectRoute(u Underlay, peer Peer, spread bool) netstate.Route {
	return netstate.Route{Dst: peer.Subnet, Via: peer.Underlay, Dev: u.Dev, Metric: RouteMetric(peer.Subnet, spread),
		MTU: u.RouteMTU(peer, u.MTU, func(u Underlay) int { return u.MTU }), Protocol: netstate.Protocol}
}

// leastMTU is what no route has less than, in bytes.
var leastMTU = map[netstate.Family]int{netstate.IPv4: 576, netstate.IPv6: 1280}

// RouteMTU returns what to say on the route to a peer's pods, in bytes, 0 for nothing: what inside leaves of the packets
// that get to the peer's own address, if that is less than mtu, which is what the route's device carries. Each peer has
// its own, so what one publishes is of no consequence for others.
func (u Underlay) RouteMTU(peer Peer, mtu int, inside func(Underlay) int) int {
	way := u.way(peer.Underlay)
	if way >= u.MTU {
		return 0
	}
	u.MTU = way
	if left := max(inside(u), leastMTU[netstate.FamilyOf(peer.Subnet.Addr())]); left < mtu {
		return left
	}
	return 0
}

// way returns the MTU in bytes of what leads to an address.
func (u Underlay) way(to netip.Addr) int {
	for bits := to.BitLen(); bits >= 0 && len(u.Narrow) > 0; bits-- {
		p, _ := to.Prefix(bits) // so many bits there are
		if mtu, ok := u.Narrow[p]; ok {
			return mtu
		}
	}
	return u.MTU
}

// RouteMetric returns the metric of a route to a peer's subnet: the one that flannel's have, or if spread is true, as
// SpreadMetrics in net-conf's Backend says, one of its own, with which the kernel makes thousands of them sooner.
func RouteMetric(dst netip.Prefix, spread bool) int {
	if spread {
		return netstate.SpreadMetric(dst)
	}
	return netstate.DefaultMetric(dst.Addr())
}

// SmallestMTU returns the MTU in bytes that all underlays carry, 0 if there is none.
func SmallestMTU(underlays []Underlay) int {
	return InnerMTU(underlays, func(u Underlay) int { return u.MTU })
}

// InnerMTU returns the MTU in bytes of a tunnel over all underlays, 0 if there is none: the smallest that inside returns.
func InnerMTU(underlays []Underlay, inside func(Underlay) int) int {
	least := 0
	for i, u := range underlays {
		if size := inside(u); i == 0 || size < least {
			least = size
		}
	}
	return least
}

// Inside returns the size in bytes of the largest packet that fits into one of u, behind headers of so many bytes: the
// first number is for an underlay of IPv4, the second for one of IPv6.
func (u Underlay) Inside(headers4, headers6 int) int {
	if u.Family() == netstate.IPv4 {
		return u.MTU - headers4
	}
	return u.MTU - headers6
}
