package kube

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/subnet"
)

// burst is how long Watch waits for more changes before it calls f.
const burst = 10 * time.Millisecond

// After a snapshot, Watch rests restAfter times as long as it took to make it, but mostRest at most: one node that changes
// all the time shall cost the others little of a processor.
const restAfter, mostRest = 100, 50 * time.Millisecond

// Watch implements subnet.Store. It also keeps the lease, the condition and the events of this node written.
func (s *Store) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	c := s.newNodes()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { s.reflect(ctx, c); return nil })
	g.Go(func() error { s.resolve(ctx, c); return nil })
	g.Go(func() error { s.keep(ctx, c); return nil })
	g.Go(func() error { s.sendEvents(ctx); return nil })
	g.Go(func() error { s.deliver(ctx, c, f); return nil })
	return g.Wait()
}

// deliver calls f with the newest snapshot after each burst of changes that matter.
func (s *Store) deliver(ctx context.Context, c *nodes, f func(subnet.Snapshot)) {
	seen, local, nodeIPs := -1, subnet.Lease{}, []netip.Addr(nil)
	for rest := time.Duration(0); ; {
		if !pause(ctx, rest) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		}
		if !pause(ctx, burst) {
			return
		}
		select { // what came during the pause is in the snapshot
		case <-c.changed:
		default:
		}
		begin := time.Now()
		peers, skips, version, synced := c.peers()
		rest = min(restAfter*time.Since(begin), mostRest)
		if !synced {
			continue
		}
		now, addrs := s.localNow(c), s.nodeIPs(c)
		if version == seen && now.Equal(local) && slices.Equal(addrs, nodeIPs) {
			continue
		}
		seen, local, nodeIPs = version, now, addrs
		f(subnet.Snapshot{Local: now, Peers: peers, Skips: skips, NodeIPs: addrs})
	}
}

// localNow is this node's lease. What was acquired stays while the Node object is gone, or says nonsense: a
// new one is a new lease only when it is whole.
func (s *Store) localNow(c *nodes) subnet.Lease {
	r, ok := c.ownRecord()
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	if s.own.want == nil { // a reader, such as twillctl
		l, err := s.notes.lease(r)
		if !ok || err != nil || !r.isPeer() {
			return subnet.Lease{Node: s.node}
		}
		return l
	}
	if !ok {
		return s.own.lease
	}
	if l, err := s.local(*s.own.want, r); err == nil {
		s.own.lease = l
	}
	return s.own.lease
}

// nodeIPs returns what the Node object says about the choice of the underlay, empty when that is nonsense.
func (s *Store) nodeIPs(c *nodes) []netip.Addr {
	r, _ := c.ownRecord()
	h, err := s.notes.hints(r)
	if err != nil {
		return nil
	}
	return h.Addrs()
}

// reflect keeps c like the API server's nodes until ctx is done.
func (s *Store) reflect(ctx context.Context, c *nodes) {
	again := backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	version := "" // up to which c knows everything; empty: c has to be filled from a list
	for ctx.Err() == nil {
		var err error
		if version == "" || time.Now().After(c.relist) {
			version, err = s.list(ctx, c, version)
		}
		began := time.Now()
		if err == nil {
			version, err = s.follow(ctx, c, version)
		}
		if err == nil && time.Since(began) > time.Second {
			again.reset() // a watch that ran and ended
			continue
		}
		pause(ctx, again.step())
	}
}

// few is up to how many Nodes are read one by one when a list of metadata is not enough; beyond, all are listed whole.
const few = 64

// relist is how often c is filled from a list although every watch could be resumed, at least: whatever made c and the
// API server differ ends there.
const relist = time.Hour

// list fills c with what there is at a version or later, and returns the version from which a watch goes on. The API server has
// a version in memory; without one it asks etcd. It never takes "0", the past of an API server that lags behind, in which peers may
// be missing.
func (s *Store) list(ctx context.Context, c *nodes, version string) (string, error) {
	all, err := s.everything(ctx, c, version)
	if err != nil { // a list alone is not yet a watch
		s.tellWatch(ctx, err)
		return "", err
	}
	c.replace(all.items)
	c.relist = time.Now().Add(c.every + rand.N(c.every/2))
	return all.version, nil
}

// watchFor is how long a watch is asked for, at least; the API servers of a cluster share their clients anew when one
// comes back.
const watchFor = 5 * time.Minute

// follow watches from version on, and returns the version up to which c knows everything: empty if c has to be filled
// from a list again.
func (s *Store) follow(ctx context.Context, c *nodes, version string) (string, error) {
	most := watchFor + rand.N(watchFor)
	ctx, cancel := context.WithTimeout(ctx, most+callTimeout)
	defer cancel()
	w, err := s.watch(ctx, version, most)
	if err == nil {
		defer w.body.Close()
	}
	s.tellWatch(ctx, err)
	for err == nil {
		var events []change
		if events, err = w.batch(); err == nil {
			if version, err = s.reached(version, events); err == nil {
				c.enter(events)
			}
		}
	}
	switch {
	case errors.Is(err, errRestored) || answered(err, http.StatusGone):
		return "", nil
	case errors.Is(err, io.EOF):
		return version, nil
	}
	return version, err
}

// errRestored says that the API server knows less than it did: its etcd was restored from a backup.
var errRestored = errors.New("the API server was restored from a backup")

// watch begins a watch. From a revision of the future the API server would begin one too, and be silent: so it is asked
// how far it is. It only can go back while nobody is connected.
func (s *Store) watch(ctx context.Context, version string, most time.Duration) (*changes, error) {
	now, err := s.api.revision(ctx)
	if err != nil {
		return nil, err
	}
	if s.known.reach(now) {
		return nil, errRestored
	}
	return s.api.watchNodes(ctx, s.lean(), version, most)
}

// reached returns the version up to which everything is known after the events, which follow version.
func (s *Store) reached(version string, events []change) (string, error) {
	for _, e := range events {
		if older(e.version, version) {
			s.known.reach(e.version)
			return version, errRestored
		}
		version = e.version
	}
	s.known.advance(version)
	return version, nil
}

// lean keeps of Nodes what the store's records have.
func (s *Store) lean() lean { return lean{s.notes.prefix, s.node} }

func (s *Store) tellWatch(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, errRestored) && !answered(err, http.StatusGone) {
		s.waits.tell(taskWatch, err)
	}
}
