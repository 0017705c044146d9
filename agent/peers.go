package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/transition"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// leases is what the store says. The goroutine that watches the store stores the newest snapshot
// and notifies; the loop follows it.
type leases struct {
	newest  atomic.Pointer[subnet.Snapshot]
	nodeIPs atomic.Pointer[[]netip.Addr] // before there is a snapshot
	changed chan struct{}
	// acquired says that the store has given this node a lease in this run.
	acquired atomic.Bool

	// Of the loop alone:
	peers    *peers
	seen     *subnet.Snapshot // the newest one that peers have seen
	reminder *time.Timer      // notifies when a delayed record may be followed
}

func newLeases(b backend.Backend) *leases {
	l := &leases{changed: make(chan struct{}, 1), peers: newPeers(nil)}
	if c, ok := b.(backend.Claimer); ok {
		l.peers.claims.of = transition.Claims(c)
	}
	return l
}

// follow returns the store's newest snapshot as the agent follows it, nil if there is none yet.
// Only the loop calls it.
func (l *leases) follow() *subnet.Snapshot {
	newest := l.newest.Load()
	if newest == nil || newest == l.seen && l.peers.delayed == 0 {
		return l.peers.last
	}
	l.seen = newest
	snap := l.peers.follow(newest, time.Now())
	if l.peers.delayed > 0 {
		l.remind(l.peers.wait)
	}
	return snap
}

// remind notifies after a while, as if the leases had changed.
func (l *leases) remind(wait time.Duration) {
	if l.reminder == nil {
		l.reminder = time.AfterFunc(wait, func() { loop.Notify(l.changed) })
		return
	}
	l.reminder.Reset(wait)
}

// peers turns the store's snapshots into those that the agent follows. They differ in the records
// that change too often: a peer may write its record as often as it likes, and each change costs
// every other node the work of a plan among thousands of peers, so each record has a budget of
// changes, beyond which its last state stands a little longer. All other records are followed at
// once. The snapshots also say who was seen first with what only one node can have.
type peers struct {
	changes int // of a record, at once
	nodes   map[string]*peer
	claims  claimOrder
	round   int              // the number of the snapshot
	last    *subnet.Snapshot // what follow returned
	delayed int              // how many records wait
	wait    time.Duration    // until one of them may be followed
}

// peer is one of the other nodes: the record that the agent follows, and what it remembers of it.
type peer struct {
	name string
	record
	round   int     // the last snapshot that had it
	budget  *budget // nil until the record has changed
	changed time.Time
	claims  []claimed
}

// record is what a store says of a node: a lease, or why there is none, or neither when it is not there.
type record struct {
	lease subnet.Lease
	skip  subnet.Skip
}

func (r record) exists() bool { return r.lease.Node != "" || r.skip != subnet.Skip{} }

func (r record) equal(o record) bool { return r.skip == o.skip && r.lease.Equal(o.lease) }

func newPeers(claims func(subnet.Stack) []string) *peers {
	return &peers{changes: peerChanges, nodes: map[string]*peer{},
		claims: claimOrder{of: claims, nodes: map[string]int{}}}
}

// remember takes over what an earlier agent saw of who published what first.
func (p *peers) remember(snap subnet.Snapshot) {
	for _, lease := range snap.Peers {
		n := p.node(lease.Node)
		p.claims.publish(n, lease, p.round)
		for i, c := range n.claims {
			n.claims[i].round = snap.Claims[subnet.Claim{Node: lease.Node, What: c.what}]
			p.round = max(p.round, n.claims[i].round)
		}
	}
}

// follow returns the snapshot that the agent follows. It is the one that it returned before if
// there is nothing new.
func (p *peers) follow(newest *subnet.Snapshot, now time.Time) *subnet.Snapshot {
	p.round++
	p.delayed, p.wait = 0, peerRest
	changed := p.last == nil || !newest.Local.Equal(p.last.Local) || !slices.Equal(newest.NodeIPs, p.last.NodeIPs)
	see := func(n *peer, r record) {
		if n.round != p.round {
			n.round = p.round
			changed = p.update(n, r, now) || changed
		}
	}
	for _, lease := range newest.Peers {
		see(p.node(lease.Node), record{lease: lease})
	}
	for _, skip := range newest.Skips {
		see(p.node(skip.Node), record{skip: skip})
	}
	if p.expire(now) || changed {
		p.last = p.snapshot(newest)
	}
	return p.last
}

func (p *peers) node(name string) *peer {
	n, ok := p.nodes[name]
	if !ok {
		n = &peer{name: name}
		p.nodes[name] = n
	}
	return n
}

// update makes r the record that the agent follows, within its budget, and reports whether that
// changed anything. That a node comes for the first time is no change of its record.
func (p *peers) update(n *peer, r record, now time.Time) bool {
	if n.equal(r) {
		return false
	}
	if !n.changed.IsZero() {
		if n.budget == nil {
			n.budget = newRecordBudget(p.changes)
		}
		if wait := n.budget.take(1, now); wait > 0 {
			p.delayed, p.wait = p.delayed+1, min(p.wait, wait)
			return false
		}
	}
	n.record, n.changed = r, now
	p.claims.publish(n, r.lease, p.round)
	return true
}

// expire updates the nodes that the snapshot does not have, and forgets those that need no
// memory.
func (p *peers) expire(now time.Time) (changed bool) {
	for name, n := range p.nodes {
		if n.round == p.round {
			continue
		}
		changed = p.update(n, record{}, now) || changed
		if !n.exists() && !p.claims.disputed(n) && now.Sub(n.changed) > peerChanges*peerRest {
			p.claims.retract(n.claims)
			delete(p.nodes, name)
		}
	}
	return changed
}

// snapshot returns the store's snapshot with the records that the agent follows.
func (p *peers) snapshot(newest *subnet.Snapshot) *subnet.Snapshot {
	snap := *newest
	snap.Claims = p.claims.order(p.nodes)
	if p.delayed == 0 {
		return &snap
	}
	snap.Peers, snap.Skips = nil, nil
	add := func(r record) {
		if r.lease.Node != "" {
			snap.Peers = append(snap.Peers, r.lease)
		} else if r.exists() {
			snap.Skips = append(snap.Skips, r.skip)
		}
	}
	for _, lease := range newest.Peers {
		add(p.nodes[lease.Node].record)
	}
	for _, skip := range newest.Skips {
		add(p.nodes[skip.Node].record)
	}
	var gone []*peer // whose record still stands
	for _, n := range p.nodes {
		if n.round != p.round {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(a, b *peer) int { return cmp.Compare(a.name, b.name) })
	for _, n := range gone {
		add(n.record)
	}
	return &snap
}
