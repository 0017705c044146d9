package kube

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// burst is how long Watch waits for more changes before it calls f.
const burst = 10 * time.Millisecond

// After a snapshot, Watch rests restAfter times as long as it took to make it, but mostRest at most: one node that
// changes all the time shall cost the others little of a processor.
const restAfter, mostRest = 100, 50 * time.Millisecond

// Watch implements subnet.Store. It also keeps the lease, the condition and the events of this node written.
func (s *Store) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	v := s.newSources()
	g, ctx := errgroup.WithContext(ctx)
	v.start(ctx, g, s)
	g.Go(func() error { s.keep(ctx, v); return nil })
	g.Go(func() error { s.watchAPI(ctx); return nil })
	g.Go(func() error { s.sendEvents(ctx); return nil })
	g.Go(func() error { s.deliver(ctx, v, f); return nil })
	return g.Wait()
}

// deliver calls f with the newest snapshot after each burst of changes that matter.
func (s *Store) deliver(ctx context.Context, v *sources, f func(subnet.Snapshot)) {
	seen, local, nodeIPs := -1, subnet.Lease{}, []netip.Addr(nil)
	var from *records
	for rest := time.Duration(0); ; {
		if !loop.Sleep(ctx, rest) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-v.changed:
		}
		if !loop.Sleep(ctx, burst) {
			return
		}
		select { // what came during the pause is in the snapshot
		case <-v.changed:
		default:
		}
		begin := time.Now()
		s.guard(ctx, v)
		source := v.source()
		if source == nil {
			continue
		}
		peers, skips, version := source.peers()
		rest = min(restAfter*time.Since(begin), mostRest)
		now, addrs := s.localNow(v.own), s.nodeIPs(v.own)
		if source == from && version == seen && now.Equal(local) && slices.Equal(addrs, nodeIPs) {
			continue
		}
		v.begun = true
		from, seen, local, nodeIPs = source, version, now, addrs
		f(subnet.Snapshot{Local: now, Peers: peers, Skips: skips, NodeIPs: addrs})
	}
}

// localNow returns this node's lease. What was acquired stays while the Node object is gone or says nonsense: a new one
// is a new lease only when it is whole.
func (s *Store) localNow(c *nodes) subnet.Lease {
	r, ok := c.ownRecord()
	s.own.mu.Lock()
	defer s.own.mu.Unlock()
	if s.own.want == nil { // a reader, such as twillctl
		l, err := s.annotations.lease(r)
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
	h, err := s.annotations.hints(r)
	if err != nil {
		return nil
	}
	return h.Addrs()
}

// reflect keeps c in sync with the API server's Nodes until ctx is done.
func (s *Store) reflect(ctx context.Context, c *nodes) {
	kubeclient.Reflect(ctx, kubeclient.Reflection{
		Name: "nodes", Example: &metav1.PartialObjectMetadata{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return s.list(ctx, c, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.watch(ctx, c, o)
		},
	}, c)
}

// rewound asks the API server for its revision of Nodes, and reports whether it was restored from a backup since the last
// one.
func (s *Store) rewound(ctx context.Context, c *nodes) (bool, error) {
	now, err := s.api.Revision(ctx, nodesResource, "")
	return err == nil && c.podCIDRs.rewound(now), err
}

// resume returns an error if a watch cannot be started, and makes the reflector list again by some of them. That is
// necessary now and then, whatever made the cache and the API server differ, and when the API server was restored from
// a backup, which rewound says: it would begin a watch from a revision of the future, and send nothing. It can only go
// back while nobody is connected.
func resume(relist time.Time, rewound func() (bool, error)) error {
	if time.Now().After(relist) {
		return apierrors.NewResourceExpired("it is time to list all again")
	}
	back, err := rewound()
	if back {
		return apierrors.NewResourceExpired("the API server was restored from a backup")
	}
	return err
}

// watch starts a watch of Nodes.
func (s *Store) watch(ctx context.Context, c *nodes, o metav1.ListOptions) (w watch.Interface, err error) {
	o.FieldSelector = c.selector
	if err = resume(c.relist, func() (bool, error) { return s.rewound(ctx, c) }); err == nil {
		w, err = s.api.Metadata.Resource(nodesResource).Watch(ctx, o)
	}
	if !expired(err) {
		s.reportWatch(ctx, c.records, taskWatch, kubeclient.Explain("watch", "nodes", err))
	}
	return w, err
}

// expired reports whether err makes a reflector list again, and nothing is wrong.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// reportWatch notes that c cannot be kept in sync because of err, or that it is; ctx is done when nobody wants it any
// more.
func (s *Store) reportWatch(ctx context.Context, c *records, task string, err error) {
	if ctx.Err() == nil {
		s.progress.Report(task, err)
		c.setStale(err != nil)
	}
}
