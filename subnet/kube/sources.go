package kube

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// sources are the caches of a Watch. One goroutine, that of deliver, chooses the one that snapshots come from.
type sources struct {
	mode    string // as in Options
	changed chan struct{}
	own     *nodes        // has this node's own Node
	all     *nodes        // all Nodes, own among them; nil: they are not read
	leases  *leaseObjects // nil: they are not read
	guard
}

// newSources makes the caches that the mode asks for. All tell of changes through one channel.
func (s *Store) newSources() *sources {
	v := &sources{mode: s.mode}
	switch s.mode {
	case subnet.StoreLeases:
		v.own, v.leases = s.newOwnNode(), s.newLeases()
	case subnet.StoreBoth:
		v.all, v.leases = s.newNodes(), s.newLeases()
		v.own = v.all
	default:
		v.all = s.newNodes()
		v.own = v.all
	}
	v.changed = v.own.changed
	if v.leases != nil {
		v.leases.changed = v.changed
	}
	return v
}

// start has reflectors keep the caches in sync until ctx is done.
func (v *sources) start(ctx context.Context, g *errgroup.Group, s *Store) {
	v.group = g
	s.follow(ctx, g, v.own, 0)
	if v.leases != nil {
		g.Go(func() error { s.reflectLeases(ctx, v.leases); return nil })
	}
}

// follow keeps c in sync with the Nodes after a delay.
func (s *Store) follow(ctx context.Context, g *errgroup.Group, c *nodes, delay time.Duration) {
	context.AfterFunc(ctx, c.queue.ShutDown)
	g.Go(func() error {
		if loop.Sleep(ctx, delay) {
			s.reflect(ctx, c)
		}
		return nil
	})
	for range maxConcurrentGets {
		g.Go(func() error { s.readQueued(ctx, c); return nil })
	}
}

// source returns the cache that snapshots come from, nil before it and the own Node are in sync. Nodes say all that Lease
// objects do, so they are used for as long as they are read. The first snapshot waits for them, or an agent that starts
// would remove what leads to nodes without Lease objects. Later ones do not: what is known stays until Nodes are in
// sync.
func (v *sources) source() *records {
	switch {
	case !v.own.inSync():
	case v.all != nil && v.all.inSync():
		return v.all.records
	case v.mode == subnet.StoreLeases && v.listed && (v.all == nil || v.begun):
		return v.leases.records
	}
	return nil
}
