package agent

import (
	"context"
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
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
	plan := netstate.Diff(a.desired(a.node, snap), a.right)
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
