package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// planTimeout is how long a dry run waits for the store.
const planTimeout = 15 * time.Second

// Planned is what a dry run found.
type Planned struct {
	Kernel    netstate.Plan
	Elsewhere []string // a line for each change outside the kernel
	Skips     []subnet.Skip
}

// Plan returns what Run would change now. It claims no lease and writes nothing; a node without a
// lease has no plan.
func (a *Agent) Plan(ctx context.Context) (p Planned, err error) {
	node, err := a.gatherFacts(ctx)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	last, ok, err := a.Store.Last(ctx, a.bareLease(node))
	if err != nil || !ok {
		return p, noLease(a.Node, err)
	}
	snap, err := a.firstSnapshot(ctx)
	if err != nil {
		return p, err
	}
	if len(snap.Local.Stacks) == 0 {
		snap.Local, snap.Peers = last, without(snap.Peers, last)
	}
	if a.isSwitch(snap.Local) {
		snap.Local = a.leaseFor(node, snap.Local)
	}
	want, skips := a.planner().Desired(node, snap)
	p.Skips = append(snap.Skips, skips...)
	if p.Kernel, _, err = a.compare(ctx, want, true); err != nil {
		return p, err
	}
	select {
	case asked := <-a.oldSubnets.asked:
		a.count(asked)
		if p.Kernel, _, err = a.compare(ctx, want, true); err != nil {
			return p, err
		}
	default:
	}
	if b, ok := a.Backend.(backend.Planner); ok {
		p.Elsewhere, err = b.Plan(ctx, a.env(), backend.Input{Node: node, Snapshot: snap, Synced: true})
	}
	return p, err
}

// without returns the peers that are not the lease's own node. A store that has acquired nothing in
// this run may not know which of its records is the own one.
func without(peers []subnet.Lease, own subnet.Lease) []subnet.Lease {
	return slices.DeleteFunc(slices.Clone(peers), func(p subnet.Lease) bool {
		return slices.ContainsFunc(p.Stacks, func(s subnet.Stack) bool {
			mine, ok := own.Stack(s.Family())
			return ok && mine.Subnet == s.Subnet && mine.Underlay == s.Underlay
		})
	})
}

func noLease(node string, err error) error {
	if err != nil {
		return fmt.Errorf("find the lease of node %s: %w", node, err)
	}
	return fmt.Errorf("node %s has no lease yet: start twilld without --dry-run to get one", node)
}

// firstSnapshot watches the store until it is in sync.
func (a *Agent) firstSnapshot(ctx context.Context) (subnet.Snapshot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first *subnet.Snapshot
	err := a.Store.Watch(ctx, func(snap subnet.Snapshot) {
		if first == nil {
			first = &snap
			cancel()
		}
	})
	if first != nil {
		return *first, nil
	}
	return subnet.Snapshot{}, errors.Join(fmt.Errorf("the store was not in sync within %s", planTimeout), err)
}

// Cleanup deletes everything of Twill's from a kernel and returns what was deleted. Links and routes go also while nobody
// knows the firewall's rules.
func Cleanup(ctx context.Context, k Kernel) (netstate.Plan, error) {
	var done netstate.Plan
	for range maxRounds {
		have, unknown := k.Observe(ctx, nil)
		if unknown != nil && !isAboutRules(unknown) {
			return done, unknown
		}
		plan := netstate.Diff(nil, have)
		if len(plan) == 0 {
			return done, unknown
		}
		if err := k.Apply(ctx, plan); err != nil {
			return done, err
		}
		done = append(done, plan...)
	}
	return done, nil
}
