package vxlan

import (
	"fmt"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Claim implements backend.Claimer: a VTEP's MAC address.
func (b Backend) Claim(stack subnet.Stack) string {
	vni, mac, _ := parseData(stack.Data)
	if vni != b.options.VNI {
		return ""
	}
	return vtep{stack.Is4(), mac}.String()
}

func (v vtep) String() string { return fmt.Sprint(v.mac, " ", v.is4) }

// Joined implements backend.Joiner: peers that share nothing with the others get what they would get alone.
func (b Backend) Joined(node backend.Node, snap subnet.Snapshot, more []subnet.Lease) (netstate.State, bool) {
	if !backend.Apart(snap, more) {
		return nil, false
	}
	alone := snap
	alone.Peers = more
	peers, skips := backend.Peers(b.networks, node, alone)
	d := b.begin(node, alone, skips, len(peers))
	d.each(peers)
	return d.state, len(d.skips) == 0 && !b.sharesMAC(node, snap, d.claims)
}

// sharesMAC reports whether this node or one of snap's peers has one of the claimed VTEP MACs. What cannot be read has none.
func (b Backend) sharesMAC(node backend.Node, snap subnet.Snapshot, claims *backend.Claims[vtep]) bool {
	for _, u := range node.Underlays {
		if is4 := u.Local.Is4(); claims.Has(vtep{is4, b.vtepMAC(node, is4)}) {
			return true
		}
	}
	for _, peer := range snap.Peers {
		for _, s := range peer.Stacks {
			if _, mac, err := parseData(s.Data); err == nil && claims.Has(vtep{s.Is4(), mac}) {
				return true
			}
		}
	}
	return false
}
