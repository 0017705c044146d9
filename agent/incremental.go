package agent

import (
	"context"
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
)

// incremental writes what a change of the leases asks for without reading the kernel first, and
// reports whether it did; if not, a reconcile is needed. It is the only shortcut beside the
// reconcile. Its reason: among thousands of peers reading the kernel takes tens of milliseconds,
// for which every node that joins would have to wait (Documentation/benchmarks.md has the figures).
// It writes the Diff of two wanted states, peers' entries only, and only if the kernel was as
// wanted after the last reconcile. The reconcile that follows after verifyDelay finds it done, or
// repairs what somebody else has changed meanwhile.
func (a *Agent) incremental(ctx context.Context) bool {
	snap, cache, applied := a.followed(), a.loop.desired, a.loop.applied
	switch {
	case applied == nil || !snap.Local.Equal(cache.snap.Local) || !slices.Equal(snap.NodeIPs, cache.snap.NodeIPs):
		return false // this node's own lease and addresses are more than entries
	case a.inTransition(snap.Local):
		return false // what the node publishes may change with them
	case snap == cache.snap:
		return true
	}
	a.loop.applied = nil
	plan := netstate.Diff(a.desired(a.loop.node, snap), applied)
	if !a.onlyEntries(plan) || len(plan) > 0 && a.apply(ctx, plan) != nil {
		return false
	}
	if len(plan) > 0 && time.Now().After(a.loop.verifyAt) {
		a.loop.verifyAt = time.Now().Add(verifyDelay)
	}
	a.setApplied(a.loop.desired.want)
	a.history.settled = snap
	fit, _ := a.leaveOut(a.loop.node, *snap)
	a.sendView(fit.Node, fit.Snapshot, true)
	replace(a.saves, *snap)
	return true
}

// onlyEntries reports whether a plan changes nothing on which other objects stand, and nothing that
// is contended.
func (a *Agent) onlyEntries(plan netstate.Plan) bool {
	now := time.Now()
	return !slices.ContainsFunc(plan, func(c netstate.Change) bool {
		return !isEntry(c) || c.Key().Kind == netstate.KindPeer || a.loop.contention.suppressed(c.Key(), now)
	})
}
