package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
)

// maxRounds bounds the fixpoint of one pass: a recreated device needs a second round for what the kernel
// deleted with it, and a switched backend a third for a name or port that was still in use.
const maxRounds = 4

// converge brings the kernel to want and returns what is still different. Without the store's own word
// nothing is deleted.
func (a *Agent) converge(ctx context.Context, want netstate.State, synced bool) (netstate.Plan, error) {
	var before netstate.Plan
	var applied error
	for range maxRounds {
		plan, err := a.plan(ctx, want, synced)
		switch {
		case err != nil || len(plan) == 0:
			return plan, err
		case applied != nil && slices.Equal(plan, before):
			return plan, applied // trying again at once would not help
		}
		began := time.Now()
		applied = a.Kernel.Apply(ctx, plan)
		a.logPlan(plan, time.Since(began), applied)
		if applied == nil {
			a.fights.note(plan, time.Now())
		}
		before = plan
	}
	plan, err := a.plan(ctx, want, synced)
	if err == nil && len(plan) > 0 {
		err = fmt.Errorf("%d objects are still not as wanted, the first: %s", len(plan), plan[0])
	}
	return plan, err
}

// plan is what to change now. Objects that someone else keeps changing back wait.
func (a *Agent) plan(ctx context.Context, want netstate.State, synced bool) (netstate.Plan, error) {
	have, err := a.Kernel.Observe(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's state: %w", err)
	}
	plan := netstate.Diff(want, have)
	now := time.Now()
	return slices.DeleteFunc(plan, func(c netstate.Change) bool {
		return !synced && c.Want == nil || a.fights.held(c.Key(), now) || a.keepsPods(c)
	}), nil
}
