package transition

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// MTU is the smallest of the ways': a pod does not know by which one its packets go.
func (b Backend) MTU(node backend.Node) int {
	mtu := b.ways[0].Backend.MTU(node)
	for _, w := range b.ways[1:] {
		mtu = min(mtu, w.Backend.MTU(node))
	}
	return mtu
}

// Desired is what each way needs, and the path to each peer by the newest way that leads to it.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	_, state, skips := b.divide(node, snap)
	return state, skips
}

// refusal is that a way's backend leaves out a peer that it should reach.
type refusal struct {
	way  int
	node string
}

// divide returns the peers with the ways that are left for each, of which the first is the one that is used, what they need, and
// the peers that no way leads to. A peer behind a router, which the newest way cannot reach, say, is reached by another one.
func (b Backend) divide(node backend.Node, snap subnet.Snapshot) ([]pair, netstate.State, []subnet.Skip) {
	pairs, skips := b.pairs(node, snap)
	for {
		state, refused := netstate.State{}, map[refusal]subnet.Skip{}
		for i, w := range b.ways {
			want, skips := w.Backend.Desired(node, b.view(i, snap, pairs))
			if _, runs := w.Backend.(backend.Runner); runs {
				dropOthers(want, i, pairs)
			}
			state.Merge(want)
			for _, s := range skips {
				refused[refusal{i, s.Node}] = s
			}
		}
		again := false
		for i, p := range pairs {
			if by := (refusal{p.ways[0].way, p.Node}); len(p.ways) > 1 && refused[by].Node != "" {
				pairs[i].ways, again = p.ways[1:], true
			}
		}
		if again {
			continue
		}
		for _, p := range pairs {
			by := refusal{p.ways[0].way, p.Node}
			if s, ok := refused[by]; ok {
				skips = append(skips, s)
				delete(refused, by)
			}
		}
		return pairs, state, skips
	}
}

// dropOthers deletes a way's routes to the peers that are reached by another one.
func dropOthers(want netstate.State, way int, pairs []pair) {
	others := map[netip.Prefix]bool{}
	for _, p := range pairs {
		if p.ways[0].way != way {
			others[p.Subnet] = true
		}
	}
	maps.DeleteFunc(want, func(_ netstate.Key, o netstate.Object) bool {
		r, ok := o.(netstate.Route)
		return ok && others[r.Dst]
	})
}

// pairs returns the peers, oldest first, and those that offer no way of this node's.
func (b Backend) pairs(node backend.Node, snap subnet.Snapshot) (pairs []pair, skips []subnet.Skip) {
	ways := map[netstate.Family][]offered{}
	for _, s := range snap.Local.Stacks {
		ways[s.Family()] = b.known(snap.Local, s)
	}
	found := map[string]map[netstate.Family]pair{}
	all := snap
	all.Peers = nil
	for _, lease := range snap.Peers {
		if lease.Earlier { // it comes behind all others, and is reached as its node's own
			lease.Backend = snap.Local.Backend
			all.Peers = append(all.Peers, lease)
			continue
		}
		stacks := map[netstate.Family]pair{}
		for _, s := range lease.Stacks {
			local, _ := snap.Local.Stack(s.Family())
			first := local.Subnet.Addr().Less(s.Subnet.Addr())
			theirs := b.known(lease, s)
			if list := b.choices(ways[s.Family()], theirs, lease, s, first); len(list) > 0 {
				stacks[s.Family()] = pair{lease: lease, ways: list, offers: theirs}
			}
		}
		if len(stacks) == 0 {
			skips = append(skips, subnet.Skip{Node: lease.Node, Code: subnet.OtherBackend,
				Detail: fmt.Sprintf("it uses the backend %.80q, this node uses %q", lease.Backend, b.ways[0].Type)})
			continue
		}
		found[lease.Node] = stacks
		lease.Backend = snap.Local.Backend // each way looks at what the peer publishes
		all.Peers = append(all.Peers, lease)
	}
	peers, more := backend.Peers(b.networks, node, all)
	for _, peer := range peers {
		if p, ok := found[peer.Node][peer.Family()]; ok {
			p.Peer = peer
			pairs = append(pairs, p)
		}
	}
	return pairs, append(skips, more...)
}

// choices returns the ways to one address family of a peer, the newest first. One that has a backend of this node's and other
// options is left to that backend, which says what differs.
func (b Backend) choices(ours, theirs []offered, lease subnet.Lease, stack subnet.Stack, first bool) []offered {
	if list := common(ours, theirs, first); len(list) > 0 {
		return list
	}
	for _, o := range offers(lease, stack) {
		for i, w := range b.ways {
			if w.Type == o.Type {
				return []offered{{o, i}}
			}
		}
	}
	return nil
}

// view returns the snapshot that one way's backend sees: the peers that are reached by it, with what they publish for it. A Runner
// also sees those that only offer it: it takes packets of those alone that it knows, and they may be the first to send.
func (b Backend) view(way int, snap subnet.Snapshot, pairs []pair) subnet.Snapshot {
	_, runs := b.ways[way].Backend.(backend.Runner)
	view := subnet.Snapshot{Local: b.local(way, snap.Local), NodeIPs: snap.NodeIPs, Claims: snap.Claims}
	for _, p := range pairs {
		by := p.ways[:1]
		if runs && by[0].way != way {
			by = p.offers
		}
		i := slices.IndexFunc(by, func(o offered) bool { return o.way == way })
		if i < 0 {
			continue
		}
		stack := p.Stack
		stack.Data = by[i].Data
		if last := len(view.Peers) - 1; last >= 0 && view.Peers[last].Node == p.Node {
			view.Peers[last].Stacks = append(view.Peers[last].Stacks, stack)
			continue
		}
		view.Peers = append(view.Peers, subnet.Lease{Node: p.Node, Backend: b.ways[way].Type, Stacks: []subnet.Stack{stack}})
	}
	return view
}

// local returns this node's lease with what it publishes for one way.
func (b Backend) local(way int, lease subnet.Lease) subnet.Lease {
	one := subnet.Lease{Node: lease.Node, Backend: b.ways[way].Type}
	for _, s := range lease.Stacks {
		data := json.RawMessage(nil)
		for _, o := range b.known(lease, s) {
			if o.way == way {
				data = o.Data
			}
		}
		s.Data = data
		one.Stacks = append(one.Stacks, s)
	}
	return one
}
