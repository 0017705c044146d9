// Package transition changes the backend of a cluster that works, node by node. A node whose network config names another
// backend keeps the one of before beside it, and publishes both: each pair of nodes uses the newest way that both offer, and
// the old way goes when no peer needs it any more. Nobody has to tell the nodes how far the others are: their records do.
package transition

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Way is a backend by which nodes can be reached.
type Way struct {
	Type    string          // as in net-conf.json
	Options json.RawMessage // the key Backend of net-conf.json
	Backend backend.Backend
	oldest  bool // no config before it was another one
}

// Backend is the network config's backend beside those of before.
type Backend struct {
	networks []netip.Prefix
	ways     []Way // the network config's first, then those of before, the newest first
}

// New returns the backend of a node whose network config has the first way now, and had the others before, also the first one
// again if it is back. The networks are those of pods.
func New(networks []netip.Prefix, ways ...Way) backend.Backend {
	var different []Way
	oldest := 0
	for _, w := range ways {
		i := slices.IndexFunc(different, w.isAlike)
		if i < 0 && len(different) < mostWays {
			i, different = len(different), append(different, w)
		}
		if i >= 0 {
			oldest = i
		}
	}
	different[oldest].oldest = true
	if len(different) == 1 {
		return different[0].Backend
	}
	b := Backend{networks, different}
	if len(b.runners()) > 0 {
		return running{b}
	}
	return b
}

// mostWays bounds the configs of before that a node keeps: each is devices, addresses and rules.
const mostWays = 3

// isAlike reports whether nodes of two ways reach each other.
func (w Way) isAlike(other Way) bool {
	s, ok := w.Backend.(Selective)
	if w.Type != other.Type || !ok {
		return w.Type == other.Type
	}
	data, err := other.Backend.Publish(backend.Node{Name: "node"}, subnet.Lease{}, netstate.IPv4)
	return err == nil && s.Speaks(data)
}

// Selective is a Backend whose nodes do not all reach each other.
type Selective interface {
	backend.Backend
	// Speaks reports whether packets reach a node that publishes data.
	Speaks(data json.RawMessage) bool
}

// Sibling is a Backend that can stand beside another one of its type.
type Sibling interface {
	backend.Backend
	// Beside returns the backend with devices of which the other one has none.
	Beside(other backend.Backend) backend.Backend
}

// way returns the index of the way by which a peer that offers o is reached, -1 if there is none. What does not say all of its
// options is taken for the oldest: that is what its node had when the cluster began to change.
func (b Backend) way(o offer) int {
	way := -1
	for i, w := range b.ways {
		if s, ok := w.Backend.(Selective); w.Type == o.Type && (!ok || s.Speaks(o.Data)) {
			if way = i; w.oldest {
				break
			}
		}
	}
	return way
}

// offered is an offer of which this node has the way.
type offered struct {
	offer
	way int
}

// known returns the offers of one address family of a lease of which this node has the way, each way once.
func (b Backend) known(lease subnet.Lease, stack subnet.Stack) (list []offered) {
	for _, o := range offers(lease, stack) {
		way := b.way(o)
		if way >= 0 && !slices.ContainsFunc(list, func(k offered) bool { return k.way == way }) {
			list = append(list, offered{o, way})
		}
	}
	return list
}

// common returns the ways that two nodes offer, as theirs, the newest first. Both nodes come to the same order: of ways that are
// as new, that of the record of the node with the lower subnet, which is first.
func common(ours, theirs []offered, first bool) (list []offered) {
	order := theirs
	if first {
		order = ours
	}
	for _, way := range order {
		is := func(o offered) bool { return o.way == way.way && o.Until == 0 && !o.Soon }
		o, t := slices.IndexFunc(ours, is), slices.IndexFunc(theirs, is)
		if o >= 0 && t >= 0 {
			both := theirs[t]
			both.Since = max(both.Since, ours[o].Since)
			list = append(list, both)
		}
	}
	slices.SortStableFunc(list, func(a, b offered) int { return cmp.Compare(b.Since, a.Since) })
	return list
}

// pair is one address family of a peer, and the ways by which it can be reached, the newest first.
type pair struct {
	backend.Peer
	lease  subnet.Lease
	ways   []offered
	offers []offered // all of the peer's of which this node has the way
}

// Parts implements backend.Transition.
func (b Backend) Parts() (parts []backend.Backend) {
	for _, w := range b.ways {
		parts = append(parts, w.Backend)
	}
	return parts
}

// Types implements backend.Transition.
func (b Backend) Types() (types []string) {
	for _, w := range b.ways {
		types = append(types, w.Type)
	}
	return types
}

// For returns the backend of a node that publishes local, with the ways that it needs now: the network config's, so that it can
// be offered, and all that it offers.
func (b Backend) For(local subnet.Lease) backend.Backend {
	needed := []Way{b.ways[0]}
	for i, w := range b.ways[1:] {
		if slices.ContainsFunc(local.Stacks, func(s subnet.Stack) bool {
			return slices.ContainsFunc(b.known(local, s), func(o offered) bool { return o.way == i+1 })
		}) {
			needed = append(needed, w)
		}
	}
	if len(needed) == 1 {
		return needed[0].Backend
	}
	return Backend{b.networks, apart(needed)}
}

// apart returns the ways with devices of their own: those of before keep theirs.
func apart(ways []Way) []Way {
	ways = slices.Clone(ways)
	for i, w := range ways {
		for _, before := range ways[i+1:] {
			if s, ok := w.Backend.(Sibling); ok && w.Type == before.Type {
				ways[i].Backend = s.Beside(before.Backend)
			}
		}
	}
	return ways
}

// Kept returns the key Backend of the network configs of before whose ways a node offers that publishes local, the newest first.
func (b Backend) Kept(local subnet.Lease) (options []json.RawMessage) {
	t, ok := b.For(local).(Backend)
	if !ok {
		return nil
	}
	for _, w := range t.ways[1:] {
		options = append(options, w.Options)
	}
	if i := slices.IndexFunc(t.ways, func(w Way) bool { return w.oldest }); i >= 0 && i < len(t.ways)-1 {
		options = append(options, t.ways[i].Options) // the last is the oldest
	}
	return options
}
