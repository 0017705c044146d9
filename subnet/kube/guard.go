package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/subnet"
)

// A node of flannel has no Lease objects, and neither has one of Twill whose Store is nodes. So the three oldest nodes
// that publish any are guards: they read Nodes too, and compare. A guard that finds a Node whose Lease objects say
// something else, or nothing, annotates its own one; while one of the three has the annotation, all agents take leases
// from Nodes. Who is a guard follows from the Lease objects, and each agent writes its own alone.
const maxGuards = 3

// patience is how long things have to last.
type patience struct {
	settle time.Duration // a difference: a node that joins writes one after another
	calm   time.Duration // the lack of one
	linger time.Duration // the watch of Nodes after it was needed: to list all again is dear
	spread time.Duration // for each node: agents that list all Nodes because a guard asks begin one after another
	blind  time.Duration // that Lease objects are forbidden: an API server that starts forbids everything at first
}

var usualPatience = patience{settle: 2 * time.Second, calm: time.Minute, linger: 10 * time.Minute, spread: 50 * time.Millisecond,
	blind: 30 * time.Second}

// guard is what one goroutine, that of deliver, knows about the choice of the source.
type guard struct {
	group   *errgroup.Group
	stop    context.CancelFunc   // of all, in mode leases
	idle    time.Time            // since when all is not needed; zero: it is
	listed  bool                 // the Lease objects are known, and the rest here follows from them
	most    int                  // nodes that published Lease objects at a time
	begun   bool                 // there was a snapshot
	strange map[string]time.Time // nodes that differ, and since when
	asks    string               // the node for whose sake this node asks, as a guard
	seen    time.Time            // when that one last was among them for long enough
}

// guard chooses the source, and does a guard's work if this node is one.
func (s *Store) guard(ctx context.Context, v *sources) {
	if v.leases == nil {
		return
	}
	v.listed = v.leases.inSync() // before the rest is read
	guards, forbidden := v.leases.guards()
	asking := slices.IndexFunc(guards, func(r record) bool { return r.asks != "" })
	mine := slices.ContainsFunc(guards, func(r record) bool { return r.name == s.node })
	if v.mode == subnet.StoreLeases {
		unguarded := len(guards) == 0 && v.listed
		s.readNodes(ctx, v, mine, v.isBlind(forbidden, s.patience.blind) || unguarded || asking >= 0)
		s.tell(guards, asking, unguarded)
	}
	if !v.listed || mine && !v.canCompare() {
		return // what this node asked for before stays until it knows better
	}
	if mine {
		s.compare(v)
	} else {
		v.asks, v.strange = "", nil
	}
	if s.own.ask(v.asks) && v.asks != "" {
		s.Event(warning, "ReadsNodes", fmt.Sprintf("node %q has no Lease objects, or they differ from its annotations: "+
			"all agents read Nodes until that is over", v.asks))
	}
}

// isBlind reports whether Lease objects are forbidden for long enough, if they are since a time that is not zero.
func (v *sources) isBlind(since time.Time, enough time.Duration) bool {
	if since.IsZero() {
		return false
	}
	left := enough - time.Since(since)
	if left > 0 {
		v.later(left)
	}
	return left <= 0
}

// tell reports that leases come from Nodes, and why.
func (s *Store) tell(guards []record, asking int, unguarded bool) {
	var err error
	switch {
	case unguarded:
		err = errors.New("no node has Lease objects that can be read, so Nodes are")
	case asking >= 0:
		err = fmt.Errorf("node %s asks to read Nodes: node %.100q has no Lease objects, or they differ from its annotations",
			guards[asking].name, guards[asking].asks)
	}
	s.progress.Report(taskLeases, err)
}

// readNodes starts to read all Nodes, or stops it when that was not needed for a while. A guard begins at once, and so
// does an agent that starts.
func (s *Store) readNodes(ctx context.Context, v *sources, mine, fallen bool) {
	v.most = max(v.most, v.leases.count())
	switch {
	case mine || fallen:
		v.idle = time.Time{}
		if v.all == nil {
			v.all = s.newNodes()
			v.all.changed = v.changed
			ctx, v.stop = context.WithCancel(ctx)
			s.follow(ctx, v.group, v.all, s.patience.delay(v.most, mine || !v.begun))
		}
	case v.all == nil:
	case v.idle.IsZero():
		v.idle = time.Now()
		v.later(s.patience.linger)
	case time.Since(v.idle) >= s.patience.linger:
		v.stop()
		v.all = nil
	}
}

func (p patience) delay(nodes int, atOnce bool) time.Duration {
	if most := time.Duration(nodes) * p.spread; !atOnce && most > 0 {
		return rand.N(most)
	}
	return 0
}

// later has the choice made again.
func (v *sources) later(after time.Duration) { time.AfterFunc(after, v.own.notify) }

// canCompare reports whether there is something to compare. What the API server does not let a guard read says nothing
// about any node: then all differences begin anew.
func (v *sources) canCompare() bool {
	ok := v.all != nil && v.all.current() && v.leases.current()
	if !ok {
		v.strange, v.seen = nil, time.Now()
	}
	return ok
}

// compare looks for Nodes that are not as their Lease objects say, and decides for whose sake to ask.
func (s *Store) compare(v *sources) {
	peers, _, _ := v.all.peers()
	strange, now := map[string]time.Time{}, time.Now()
	if r, ok := v.leases.ownRecord(); ok && s.own.asked() == nil {
		v.asks, v.seen = r.asks, now // of before a restart
	}
	var settled []string
	for _, node := range v.leases.differing(peers) {
		since, ok := v.strange[node]
		if !ok {
			since = now
			v.later(s.patience.settle)
		}
		strange[node] = since
		if now.Sub(since) >= s.patience.settle {
			settled = append(settled, node)
		}
	}
	v.strange = strange
	v.choose(settled, now, s.patience.calm)
}

// choose sets for the sake of which of the strange nodes to ask. The one that is named stays until it was not strange
// for calm, whatever the others do: each other name is a write that wakes all agents.
func (v *sources) choose(strange []string, now time.Time, calm time.Duration) {
	switch {
	case slices.Contains(strange, v.asks):
		v.seen = now
	case v.asks != "" && now.Sub(v.seen) < calm:
		v.later(calm - now.Sub(v.seen))
	case len(strange) > 0:
		v.asks, v.seen = strange[0], now
	default:
		v.asks = ""
	}
}

// Asked returns for which node's sake a guard asks to read Nodes, and the guard; empty if none does.
func (s *Store) Asked(ctx context.Context) (node, guard string, err error) {
	c := s.newLeases()
	page, err := s.listLeases(ctx, c, metav1.ListOptions{})
	if err != nil {
		return "", "", err
	}
	all := make([]any, len(page.Items))
	for i := range page.Items {
		all[i] = &page.Items[i]
	}
	if err := c.Replace(all, page.ResourceVersion); err != nil {
		return "", "", err
	}
	guards, _ := c.guards()
	for _, r := range guards {
		if r.asks != "" {
			return r.asks, r.name, nil
		}
	}
	return "", "", nil
}

// guards returns the oldest nodes that publish Lease objects, and since when these may not be read, zero if they may.
func (c *leaseObjects) guards() (all []record, forbidden time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.order {
		if e.err == nil && len(all) < maxGuards {
			all = append(all, e.record)
		}
	}
	return all, c.forbidden
}

func (c *leaseObjects) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.order)
}

// differing returns the nodes of leases of which the Lease objects say something else, or nothing.
func (c *leaseObjects) differing(leases []subnet.Lease) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range leases {
		if e, ok := c.entries[l.Node]; !ok || e.err != nil || !e.lease.Equal(l) {
			names = append(names, l.Node)
		}
	}
	return names
}

// setForbidden notes whether the API server forbids to list or to watch Lease objects.
func (c *leaseObjects) setForbidden(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case yes == !c.forbidden.IsZero():
		return
	case yes:
		c.forbidden = time.Now()
	default:
		c.forbidden = time.Time{}
	}
	c.notify()
}
