package backend

import (
	"cmp"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// DirectRoute leads to a peer's pods through the peer's own address: what host-gw does, and vxlan with
// DirectRouting.
func DirectRoute(u Underlay, peer Peer) netstate.Route {
	return netstate.Route{Dst: peer.Subnet, Via: peer.Underlay, Dev: u.Dev,
		Metric: netstate.DefaultMetric(peer.Underlay), Protocol: netstate.Protocol}
}

// SmallestMTU is the MTU in bytes that all underlays carry, 0 if there is none.
func SmallestMTU(underlays []Underlay) int {
	if len(underlays) == 0 {
		return 0
	}
	return slices.MinFunc(underlays, func(a, b Underlay) int { return cmp.Compare(a.MTU, b.MTU) }).MTU
}
