package transition

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// running is a Backend of which a way is a backend.Runner, or several are.
type running struct{ Backend }

// runners returns the ways that are Runners, by their types.
func (b Backend) runners() map[string]backend.Runner {
	list := map[string]backend.Runner{}
	for _, w := range b.ways {
		if r, ok := w.Backend.(backend.Runner); ok {
			list[w.Type] = r
		}
	}
	return list
}

// Prepare implements backend.Runner: each way's runs.
func (r running) Prepare(ctx context.Context, env backend.Env) error {
	for _, one := range r.runners() {
		if err := one.Prepare(ctx, env); err != nil {
			return err
		}
	}
	return nil
}

// part is a way's Runner that runs.
type part struct {
	inputs chan backend.Input
	stop   func() // returns when it has ended
}

// Run implements backend.Runner: each way's runs as long as the node needs the way, with what that way's backend sees. The first
// error ends all.
func (r running) Run(ctx context.Context, env backend.Env, inputs <-chan backend.Input) error {
	group, ctx := errgroup.WithContext(ctx)
	runners, parts := r.runners(), map[string]part{}
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case in := <-inputs:
			views := r.views(in)
			for kind, p := range parts {
				if _, needed := views[kind]; !needed {
					p.stop()
					delete(parts, kind)
				}
			}
			for kind, view := range views {
				if _, runs := parts[kind]; !runs {
					parts[kind] = start(ctx, group, env, runners[kind])
				}
				replace(parts[kind].inputs, backend.Input{Node: in.Node, Snapshot: view, Synced: in.Synced})
			}
		}
	}
}

// start runs a way's Runner.
func start(ctx context.Context, group *errgroup.Group, env backend.Env, r backend.Runner) part {
	ctx, cancel := context.WithCancel(ctx)
	ended, inputs := make(chan struct{}), make(chan backend.Input, 1)
	group.Go(func() error {
		defer close(ended)
		return r.Run(ctx, env, inputs)
	})
	return part{inputs, func() { cancel(); <-ended }}
}

// replace puts the newest Input into a channel that has room for one, in place of one that was not taken.
func replace(inputs chan backend.Input, newest backend.Input) {
	select {
	case <-inputs:
	default:
	}
	inputs <- newest
}

// views returns what the Runners see that a node needs, by their types. What an earlier agent left has the ways that it offered.
func (b Backend) views(in backend.Input) map[string]subnet.Snapshot {
	t, ok := b.For(in.Snapshot.Local).(Backend)
	if !ok {
		t = Backend{b.networks, b.ways[:1]}
	}
	pairs, _, _ := t.divide(in.Node, in.Snapshot)
	views := map[string]subnet.Snapshot{}
	for i, w := range t.ways {
		made := in.Synced || slices.ContainsFunc(t.before(in.Snapshot.Local), func(o offered) bool { return o.way == i })
		if _, ok := w.Backend.(backend.Runner); ok && made {
			views[w.Type] = t.view(i, in.Snapshot, pairs)
		}
	}
	return views
}
