package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// site is what the backend's own process gets of this one.
func (a *Agent) site() backend.Site {
	return backend.Site{Dir: filepath.Dir(a.SubnetFile), Say: a.say}
}

// say is a Runner's word in the log: an error in full once.
func (a *Agent) say(text string, err error, args ...any) {
	if err != nil {
		a.status.fail(a.Log.With(args...), text, err)
		return
	}
	a.Log.Info(text, append([]any{"node", a.Node}, args...)...)
}

// prepare lets a Runner make ready what it publishes. It is false when ctx ended first.
func (a *Agent) prepare(ctx context.Context) bool {
	r, ok := a.Backend.(backend.Runner)
	if !ok {
		return true
	}
	return a.persist(ctx, "prepare the backend", func() error { return r.Prepare(ctx, a.site()) })
}

// settled is how long a Runner must run to count as running: what it cannot do it finds out at once.
const settled = 200 * time.Millisecond

// runBackend keeps a Runner running.
func (a *Agent) runBackend(ctx context.Context, r backend.Runner) error {
	for ctx.Err() == nil {
		a.persist(ctx, "run the backend", func() error {
			timer := time.AfterFunc(settled, func() { a.status.runs(nil) })
			err := r.Run(ctx, a.site(), a.views)
			timer.Stop()
			if err != nil {
				a.status.runs(err)
			}
			return err
		})
	}
	return nil
}

// persist tries f until it succeeds, and is false when ctx ended first. While f fails the loop looks again, so that
// f gets a view of its own each time.
func (a *Agent) persist(ctx context.Context, what string, f func() error) bool {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		began := time.Now()
		err := f()
		if err == nil {
			return ctx.Err() == nil
		}
		if time.Since(began) > lastRetry {
			wait = firstRetry // it worked for a while
		}
		a.status.fail(a.Log, what, err)
		if !pause(ctx, wait) {
			return false
		}
		a.kick()
	}
}

// show hands a Runner the newest view; one that it has not taken yet is dropped.
func (a *Agent) show(node backend.Node, snap subnet.Snapshot, synced bool) {
	if _, ok := a.Backend.(backend.Runner); !ok {
		return
	}
	node.Last = snap.Local
	select {
	case <-a.views:
	default:
	}
	a.views <- backend.View{Node: node, Snapshot: snap, Synced: synced}
}
