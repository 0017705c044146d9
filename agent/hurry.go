package agent

import (
	"context"
	"time"

	"github.com/twill-net/twill/netstate"
)

// A look that only judges what was written without one waits until no more comes for settleAfter, but judgeBy at most: among
// thousands of peers a look takes tens of milliseconds, for which the next one to join would have to wait.
const settleAfter, judgeBy = 200 * time.Millisecond, 10 * time.Second

// hurry writes the entries of peers that came, changed or left, if everything was right after the last look. It is a
// Diff of two wanted states; the look that follows finds it done, or mends what somebody else has changed meanwhile.
// False: a look is needed at once.
func (a *Agent) hurry(ctx context.Context) bool {
	snap, was := a.snapshot.Load(), a.asked.snap
	if a.right == nil || !snap.Local.Equal(was.Local) {
		return false // this node's own lease is more than entries
	}
	want := a.desired(a.node, snap)
	plan := netstate.Diff(want, a.right)
	if !a.onlyEntries(plan) {
		return false
	}
	if len(plan) > 0 {
		began := time.Now()
		err := a.Kernel.Apply(ctx, plan)
		a.logPlan(plan, time.Since(began), err)
		if err != nil {
			return false
		}
	}
	a.right = want
	a.show(a.node, *snap, true)
	a.save(*snap)
	return true
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
