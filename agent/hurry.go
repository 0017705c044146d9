package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// A look that only judges what was written without one waits until no more comes for settleAfter, but judgeBy at most: among
// thousands of peers a look takes tens of milliseconds, for which the next one to join would have to wait.
const settleAfter, judgeBy = 200 * time.Millisecond, 10 * time.Second

// hurried is what came of a change of the leases.
type hurried int

const (
	lookNow hurried = iota // a look is needed at once
	nothing                // there was nothing to write
	wrote                  // a look has to judge what was written
)

// hurry writes the entries of peers that came, changed or left, if no more than the way to single peers was wrong after the last
// look. It is a Diff of two wanted states; the look that follows finds it done, or mends what somebody else has changed meanwhile.
func (a *Agent) hurry(ctx context.Context) hurried {
	snap := a.latest()
	switch {
	case a.right == nil || !snap.Local.Equal(a.asked.snap.Local) || !slices.Equal(snap.NodeIPs, a.asked.snap.NodeIPs):
		return lookNow // this node's own lease and addresses are more than entries
	case snap == a.asked.snap:
		return nothing
	}
	plan, ok := a.joined(snap)
	if !ok {
		plan = netstate.Diff(a.desired(a.node, snap), a.right)
	}
	if a.right = nil; !a.onlyEntries(plan) {
		return lookNow
	}
	if len(plan) > 0 {
		began := time.Now()
		err := a.Kernel.Apply(ctx, plan)
		a.logPlan(plan, time.Since(began), err)
		if err != nil {
			return lookNow
		}
	}
	a.right = a.asked.want
	a.show(a.node, *snap, true)
	a.save(*snap)
	if len(plan) == 0 {
		return nothing
	}
	return wrote
}

// manyJoins is more than a few: then everything is asked anew.
const manyJoins = 64

// joined is the plan for a snapshot that differs from the one before in a few more peers only, if that is so and the
// backend can tell what those ask for. What is wanted now is then in a.asked.
func (a *Agent) joined(snap *subnet.Snapshot) (netstate.Plan, bool) {
	joiner, ok := a.Backend.(backend.Joiner)
	more, only := added(a.asked.snap.Peers, snap.Peers)
	if !ok || !only || len(more) > manyJoins || !slices.Equal(snap.Skips, a.asked.snap.Skips) ||
		!maps.Equal(snap.Claims, a.asked.snap.Claims) {
		return nil, false
	}
	node := a.node
	node.Last = snap.Local
	state, ok := joiner.Joined(node, *a.asked.snap, more)
	if !ok {
		return nil, false
	}
	a.asked.want.Merge(state)
	a.asked.snap = snap
	a.Metrics.observed(*snap, a.asked.want)
	return netstate.Diff(state, nil), true
}

// added are the leases of now that before does not have; only says that all others are as before, in their order.
func added(before, now []subnet.Lease) (more []subnet.Lease, only bool) {
	for _, lease := range now {
		if len(before) > 0 && lease.Equal(before[0]) {
			before = before[1:]
		} else {
			more = append(more, lease)
		}
	}
	return more, len(before) == 0
}

// onlyEntries says whether a plan changes nothing on which other objects stand, and nothing that is fought over.
func (a *Agent) onlyEntries(plan netstate.Plan) bool {
	now := time.Now()
	for _, c := range plan {
		switch c.Key().Kind {
		case netstate.KindNeigh, netstate.KindFDB, netstate.KindRoute:
		default:
			return false
		}
		if a.fights.held(c.Key(), now) {
			return false
		}
	}
	return true
}

// untilLook is how long the look that judges hurried writes may wait now.
func (a *Agent) untilLook() time.Duration {
	if a.unseen.IsZero() {
		a.unseen = time.Now()
	}
	return max(0, min(settleAfter, judgeBy-time.Since(a.unseen)))
}
