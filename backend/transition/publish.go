package transition

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Publish is what the network config's way publishes; Lease adds the others.
func (b Backend) Publish(node backend.Node, last subnet.Lease, f netstate.Family) (json.RawMessage, error) {
	return b.ways[0].Backend.Publish(node, b.local(0, last), f)
}

// Lease returns what the node should publish now, given the subnets and addresses in lease, and what it published last. The
// network config's way is offered once it works, and its backend is the record's once every peer in snap is reached by it; the ways
// of before go when it is every peer's record, too: then each peer has seen that this node offers it. A nil snapshot says nothing
// of the peers.
func (b Backend) Lease(node backend.Node, lease, last subnet.Lease, snap *subnet.Snapshot, works bool, now time.Time) (subnet.Lease, error) {
	t, ok := b.For(last).(Backend)
	if !ok {
		return b.plain(node, lease, last)
	}
	return t.lease(node, lease, last, snap, works, now)
}

// plain returns the lease of a node that offers the network config's way alone.
func (b Backend) plain(node backend.Node, lease, last subnet.Lease) (subnet.Lease, error) {
	lease.Backend, lease.Stacks = b.ways[0].Type, slices.Clone(lease.Stacks)
	for i, s := range lease.Stacks {
		data, err := b.Publish(node, last, s.Family())
		if err != nil {
			return lease, err
		}
		lease.Stacks[i].Data = data
	}
	return lease, nil
}

func (b Backend) lease(node backend.Node, lease, last subnet.Lease, snap *subnet.Snapshot, works bool, now time.Time) (subnet.Lease, error) {
	before := b.before(last)
	reached, done := false, false
	if snap != nil {
		reached, done = b.followed(node, *snap)
	}
	list := before
	if works || len(before) == 0 {
		list = b.withNewest(before, now)
	}
	own := b.own(last, list)
	if reached && list[0].way == 0 {
		own = 0
	}
	list = outdated(list, done && own == 0 && list[0].way == 0, now)
	lease.Backend = list[own].Type
	lease.Stacks = slices.Clone(lease.Stacks)
	for i, s := range lease.Stacks {
		data, err := b.data(node, last, s.Family(), list, own)
		if err != nil {
			return lease, err
		}
		lease.Stacks[i].Data = data
	}
	return lease, nil
}

// after returns now, or a time after all that is in list: a clock that was ahead may have said when a way began to be offered.
func after(list []offered, now time.Time) int64 {
	since := now.Unix()
	for _, o := range list {
		since = max(since, o.Since+1)
	}
	return since
}

// withNewest returns the ways that a node offers with the network config's first, which works. A Runner's is one of which its
// peers have to know what it publishes before the first packet comes: it is offered a while before it is used.
func (b Backend) withNewest(before []offered, now time.Time) []offered {
	i := slices.IndexFunc(before, func(o offered) bool { return o.way == 0 })
	newest := offered{offer{Type: b.ways[0].Type, Since: after(before, now)}, 0}
	if i < 0 {
		_, newest.Soon = b.ways[0].Backend.(backend.Runner)
		newest.Soon = newest.Soon && len(before) > 0
		return append([]offered{newest}, before...)
	}
	newest.Soon = before[i].Soon
	if i == 0 {
		newest = before[0]
		newest.Soon = newest.Soon && now.Sub(time.Unix(newest.Since, 0)).Abs() < staysFor
	}
	return append([]offered{newest}, slices.Delete(slices.Clone(before), i, i+1)...)
}

// staysFor is how long a peer may take to read a record: a node has a way that it has withdrawn so long, and knows who will send by
// a new one.
const staysFor = 30 * time.Second

// outdated returns the ways without those that have been withdrawn for long. All but the first are withdrawn if they are done.
func outdated(list []offered, done bool, now time.Time) []offered {
	if !done {
		for i := range list {
			list[i].Until = 0
		}
		return list
	}
	kept := list[:1]
	for _, o := range list[1:] {
		if until := now.Add(staysFor).Unix(); o.Until == 0 || o.Until > until { // or by a clock that was ahead
			o.Until = until
		}
		if now.Unix() < o.Until {
			kept = append(kept, o)
		}
	}
	return kept
}

// before returns what the node offered last, of any of its address families.
func (b Backend) before(last subnet.Lease) (list []offered) {
	for _, s := range last.Stacks {
		if len(list) == 0 {
			list = b.known(last, s)
		}
	}
	return list
}

// own returns the index in list of the way whose backend the last record had.
func (b Backend) own(last subnet.Lease, list []offered) int {
	for _, s := range last.Stacks {
		way := b.way(offer{Type: last.Backend, Data: s.Data})
		if i := slices.IndexFunc(list, func(o offered) bool { return o.way == way }); i >= 0 {
			return i
		}
	}
	return 0
}

// followed reports whether all peers are reached by the network config's way, and whether it is also the one of their records.
func (b Backend) followed(node backend.Node, snap subnet.Snapshot) (reached, done bool) {
	reached, done = true, true
	pairs, _, _ := b.divide(node, snap)
	for _, p := range pairs {
		reached = reached && p.ways[0].way == 0
		done = done && b.way(offer{Type: p.lease.Backend, Data: p.Data}) == 0
	}
	return reached, done && reached
}

// data returns what the node publishes for one address family.
func (b Backend) data(node backend.Node, last subnet.Lease, f netstate.Family, list []offered, own int) (json.RawMessage, error) {
	var say []offer
	for _, o := range list {
		data, err := b.ways[o.way].Backend.Publish(node, b.local(o.way, last), f)
		if err != nil {
			return nil, err
		}
		o.Data = data
		say = append(say, o.offer)
	}
	return withOffers(say, own)
}

// Claims implements backend.Claimer: what all of a node's ways publish that only one node can have.
func (b Backend) Claims(stack subnet.Stack) (all []string) {
	for _, o := range offers(subnet.Lease{}, stack) {
		one := stack
		if len(o.Data) > 0 {
			one.Data = o.Data
		}
		for _, w := range b.ways {
			if c, ok := w.Backend.(backend.Claimer); ok {
				all = append(all, c.Claims(one)...)
			}
		}
	}
	return all
}
