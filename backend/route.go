package backend

import (
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
	mtu := 0
	for _, u := range underlays {
		if mtu == 0 || u.MTU < mtu {
			mtu = u.MTU
		}
	}
	return mtu
}
