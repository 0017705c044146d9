package vxlan

import (
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Joined implements backend.Joiner: peers that share nothing with the others get what they would get alone.
func (b Backend) Joined(node backend.Node, snap subnet.Snapshot, more []subnet.Lease) (netstate.State, bool) {
	if !backend.Apart(snap, more) {
		return nil, false
	}
	alone := snap
	alone.Peers = more
	peers, skips := backend.Peers(b.networks, alone)
	d := desired{Backend: b, node: node, skips: skips, state: netstate.State{}, holders: map[holder]string{}}
	d.each(peers)
	return d.state, len(d.skips) == 0 && !b.sharesMAC(node, snap, d.holders)
}

// sharesMAC says whether this node or one of snap's peers has one of the VTEP MACs. What cannot be read has none.
func (b Backend) sharesMAC(node backend.Node, snap subnet.Snapshot, macs map[holder]string) bool {
	for _, u := range node.Underlays {
		if is4 := u.Local.Is4(); macs[holder{is4, b.vtepMAC(node, is4)}] != "" {
			return true
		}
	}
	for _, peer := range snap.Peers {
		for _, s := range peer.Stacks {
			if _, mac, err := parseData(s.Data); err == nil && macs[holder{s.Is4(), mac}] != "" {
				return true
			}
		}
	}
	return false
}
