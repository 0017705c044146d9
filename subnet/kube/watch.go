package kube

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/twill-net/twill/subnet"
)

// burst is how long Watch waits for more changes before it calls f.
const burst = 10 * time.Millisecond

// Watch implements subnet.Store. It also keeps the lease, the condition and the events of this node written.
func (s *Store) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	c := s.newNodes()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { s.reflect(ctx, c); return nil })
	g.Go(func() error { s.keep(ctx, c); return nil })
	g.Go(func() error { s.sendEvents(ctx); return nil })
	g.Go(func() error { s.deliver(ctx, c, f); return nil })
	return g.Wait()
}

// deliver calls f with the newest snapshot after each burst of changes that matter.
func (s *Store) deliver(ctx context.Context, c *nodes, f func(subnet.Snapshot)) {
	seen, local := -1, subnet.Lease{}
	for {
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
		peers, skips, version, synced := c.peers()
		if !synced {
			continue
		}
		now := s.localNow(c)
		if version == seen && now.Equal(local) {
			continue
		}
		seen, local = version, now
		f(subnet.Snapshot{Local: now, Peers: peers, Skips: skips})
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

// reflect keeps c like the API server's nodes until ctx is done.
func (s *Store) reflect(ctx context.Context, c *nodes) {
	// The reflector logs through the context; what there is to say, s.waits says.
	ctx = klog.NewContext(ctx, logr.Discard())
	silent := logr.Discard()
	r := cache.NewReflectorWithOptions(s.listWatch(ctx, c), &corev1.Node{}, c, cache.ReflectorOptions{
		Name:    "nodes",
		Logger:  &silent,
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 10 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5},
	})
	again := backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	for ctx.Err() == nil {
		if r.ListAndWatchWithContext(ctx) == nil {
			again.reset() // a watch that ran and ended
		}
		pause(ctx, again.step())
	}
}

// listWatch lists and watches under ctx, whatever context the reflector gives (its list has none), and tells
// s.waits of each outcome.
func (s *Store) listWatch(ctx context.Context, c *nodes) cache.ListerWatcher {
	return listWatch{&cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			// The reflector would take "0", the past of an API server that lags behind, in which peers may be missing,
			// and pages, which are for those who hold them in memory.
			list, err := s.api.listNodes(ctx, s.lean(), metav1.ListOptions{})
			if err != nil { // a list alone is not yet a watch
				s.tellWatch(ctx, err)
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.api.watchNodes(ctx, o)
			s.tellWatch(ctx, err)
			if err != nil {
				return nil, err
			}
			return s.fill(ctx, c, w), nil
		},
	}}
}

// lean keeps of Nodes what the store's records have.
func (s *Store) lean() lean { return lean{s.notes.prefix, s.node} }

// listWatch has the reflector list, and not begin with a watch that brings everything: metadata is not everything.
type listWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go 0.36 asks for.
func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (s *Store) tellWatch(ctx context.Context, err error) {
	if ctx.Err() == nil && (err == nil || !apierrors.IsResourceExpired(err)) {
		s.waits.tell(taskWatch, err)
	}
}
