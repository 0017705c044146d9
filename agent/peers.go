package agent

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/subnet"
)

// A peer's record may change as often as its owner likes, and each change costs every other node the work of a plan among
// thousands of peers. So a record that has changed peerChanges times is followed once in peerRest from then on; all others are
// followed at once, as ever.
const (
	peerChanges = 5
	peerRest    = 10 * time.Second
)

// peers is what the agent remembers of the other nodes from one snapshot to the next: what it goes by, how often that has
// changed, and since when a node publishes what only one can have.
type peers struct {
	claim    func(subnet.Stack) string // of a backend.Claimer, else nil
	changes  int
	nodes    map[string]*peer
	listed   []*peer        // those of the last snapshot's leases
	claims   map[string]int // how many nodes publish something
	disputes int            // what more than one node publishes
	round    int            // the number of the snapshot
	last     *subnet.Snapshot
	late     int           // nodes whose record waits
	wait     time.Duration // until one of them may be followed
}

// peer is one of the other nodes.
type peer struct {
	name string
	record
	round   int           // the last snapshot that had it
	late    bool          // the store's record is another one
	limit   *rate.Limiter // nil until the record has changed
	changed time.Time
	claims  []since
}

// record is what a store says of a node: a lease, or why there is none, or neither when it is not there.
type record struct {
	lease subnet.Lease
	skip  subnet.Skip
}

func (r record) here() bool { return r.lease.Node != "" || r.skip != subnet.Skip{} }

func (r record) equal(o record) bool { return r.skip == o.skip && r.lease.Equal(o.lease) }

// since is something that only one node can have, and the first round in which a node published it.
type since struct {
	what  string
	round int
}

func newPeers(claim func(subnet.Stack) string) *peers {
	return &peers{claim: claim, changes: peerChanges, nodes: map[string]*peer{}, claims: map[string]int{}}
}

// remember takes over what an earlier agent saw of who published what first.
func (p *peers) remember(snap subnet.Snapshot) {
	for _, lease := range snap.Peers {
		n := p.node(lease.Node)
		p.publish(n, lease)
		for i, c := range n.claims {
			n.claims[i].round = snap.Claims[subnet.Claim{Node: lease.Node, What: c.what}]
			p.round = max(p.round, n.claims[i].round)
		}
	}
}

// follow returns the snapshot by which the agent goes: the store's, but for records that change too often. It is the one that
// it returned before if there is nothing new.
func (p *peers) follow(raw *subnet.Snapshot, now time.Time) *subnet.Snapshot {
	p.round++
	p.late, p.wait = 0, peerRest
	changed, seen := p.last == nil || !raw.Local.Equal(p.last.Local) || !slices.Equal(raw.NodeIPs, p.last.NodeIPs), 0
	see := func(n *peer, r record) {
		if n.round != p.round {
			n.round = p.round
			seen++
			changed = p.enter(n, r, now) || changed
		}
	}
	before := p.listed
	p.listed = make([]*peer, len(raw.Peers))
	for i, lease := range raw.Peers {
		if i < len(before) && before[i].name == lease.Node { // as it mostly is, without a search
			p.listed[i] = before[i]
		} else {
			p.listed[i] = p.node(lease.Node)
		}
		see(p.listed[i], record{lease: lease})
	}
	for _, skip := range raw.Skips {
		see(p.node(skip.Node), record{skip: skip})
	}
	if seen != len(p.nodes) {
		changed = p.leave(now) || changed
	}
	if changed {
		p.last = p.snapshot(raw)
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

// enter makes r what the agent goes by, and returns whether that changed anything.
func (p *peers) enter(n *peer, r record, now time.Time) bool {
	n.late = false
	if n.equal(r) {
		return false
	}
	if wait := n.rest(p.changes, now); wait > 0 {
		n.late, p.late, p.wait = true, p.late+1, min(p.wait, wait)
		return false
	}
	n.record, n.changed = r, now
	p.publish(n, r.lease)
	return true
}

// rest is how long n's record must wait, 0 if it may change now. That a node comes for the first time is no change.
func (n *peer) rest(changes int, now time.Time) time.Duration {
	if n.changed.IsZero() {
		return 0
	}
	if n.limit == nil {
		n.limit = rate.NewLimiter(rate.Every(peerRest), changes)
	}
	r := n.limit.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// leave goes through the nodes that the snapshot does not have, and forgets those of which nothing is worth knowing.
func (p *peers) leave(now time.Time) (changed bool) {
	for name, n := range p.nodes {
		if n.round == p.round {
			continue
		}
		changed = p.enter(n, record{}, now) || changed
		disputed := slices.ContainsFunc(n.claims, func(s since) bool { return p.claims[s.what] > 1 })
		if !n.here() && !disputed && now.Sub(n.changed) > time.Duration(peerChanges)*peerRest {
			p.retract(n.claims)
			delete(p.nodes, name)
		}
	}
	return changed
}

// publish notes what n publishes with this lease. What a node that is not there published stays its own until it is forgotten:
// its record may be made anew, and somebody else may copy it meanwhile.
func (p *peers) publish(n *peer, lease subnet.Lease) {
	if p.claim == nil || lease.Node == "" {
		return
	}
	before := n.claims
	n.claims = nil
	for _, stack := range lease.Stacks {
		what := p.claim(stack)
		if what == "" || slices.ContainsFunc(n.claims, func(s since) bool { return s.what == what }) {
			continue
		}
		i := slices.IndexFunc(before, func(s since) bool { return s.what == what })
		if i >= 0 {
			n.claims, before = append(n.claims, before[i]), slices.Delete(before, i, i+1)
			continue
		}
		n.claims = append(n.claims, since{what, p.round})
		if p.claims[what]++; p.claims[what] == 2 {
			p.disputes++
		}
	}
	p.retract(before)
}

// retract is the end of claims.
func (p *peers) retract(claims []since) {
	for _, s := range claims {
		switch p.claims[s.what]--; p.claims[s.what] {
		case 1:
			p.disputes--
		case 0:
			delete(p.claims, s.what)
		}
	}
}

// snapshot is the store's with the records by which the agent goes.
func (p *peers) snapshot(raw *subnet.Snapshot) *subnet.Snapshot {
	snap := *raw
	snap.Claims = p.order()
	if p.late == 0 {
		return &snap
	}
	snap.Peers, snap.Skips = nil, nil
	add := func(r record) {
		if r.lease.Node != "" {
			snap.Peers = append(snap.Peers, r.lease)
		} else if r.here() {
			snap.Skips = append(snap.Skips, r.skip)
		}
	}
	for _, n := range p.listed {
		add(n.record)
	}
	for _, skip := range raw.Skips {
		add(p.nodes[skip.Node].record)
	}
	var left []*peer // and that waits
	for _, n := range p.nodes {
		if n.round != p.round {
			left = append(left, n)
		}
	}
	slices.SortFunc(left, func(a, b *peer) int { return cmp.Compare(a.name, b.name) })
	for _, n := range left {
		add(n.record)
	}
	return &snap
}

// order is who came first to what more than one node publishes.
func (p *peers) order() map[subnet.Claim]int {
	if p.disputes == 0 {
		return nil
	}
	order := map[subnet.Claim]int{}
	for name, n := range p.nodes {
		for _, s := range n.claims {
			if p.claims[s.what] > 1 {
				order[subnet.Claim{Node: name, What: s.what}] = s.round
			}
		}
	}
	return order
}
