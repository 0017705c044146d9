package agent

import (
	"context"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// A restarted agent often finds everything as its predecessor left it, and among thousands of peers the list of all of them
// takes most of its start. Then it is ready as soon as the store has confirmed this node's own lease: the pods have the
// network that they had a moment ago, and what changed meanwhile is applied when the list is there. If that takes longer
// than warmFor, the node is not ready until it is.
const warmFor = 10 * time.Second

// warmth is what a start without the list of peers knows.
type warmth struct {
	looked bool
	local  *subnet.Lease // of the checkpoint, if the kernel is as the checkpoint's leases ask; nil if it is not
}

// warm makes the agent ready if it may be before the store has told of the peers. It writes nothing.
func (a *Agent) warm(ctx context.Context, node backend.Node) {
	if !a.warmth.looked {
		a.warmth = warmth{true, a.standing(ctx, node)}
	}
	lease := a.leased.Load()
	if a.warmth.local == nil || lease == nil || !lease.Equal(*a.warmth.local) {
		a.status.warm(time.Time{})
		return
	}
	a.status.warm(a.begun.Add(warmFor))
	if a.status.Ready() == nil {
		a.Metrics.ready.Set(1)
	}
}

// standing is this node's lease in the checkpoint, if the kernel is exactly as the checkpoint's leases ask.
func (a *Agent) standing(ctx context.Context, node backend.Node) *subnet.Lease {
	snap, ok := a.lastTime()
	if !ok {
		return nil
	}
	want, _ := a.Desired(node, *snap)
	have, err := a.Kernel.Observe(ctx, want)
	if err != nil || len(netstate.Diff(want, have)) > 0 {
		return nil
	}
	return &snap.Local
}
