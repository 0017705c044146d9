package kube

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Every node's kubelet writes its Node object again and again, and a watch of whole objects would bring 13 kB each
// time. So the store watches metadata, which has all but the podCIDRs. Those cannot be changed once they are there: a
// Node is read in full only when it is a peer whose podCIDRs are not known yet, or when it is this node's, whose
// conditions are wanted too.

// atOnce is how many events are looked at together, and reads how many Nodes are then read at a time.
const atOnce, reads = 64, 16

// filling is a watch of metadata on its way to become one of Nodes.
type filling struct {
	store *Store
	nodes *nodes
	in    chan watch.Event
	out   chan watch.Event
}

// fill makes of a watch of metadata one of Nodes, as lean as the list's. It ends with ctx, with src, or by its Stop.
func (s *Store) fill(ctx context.Context, c *nodes, src watch.Interface) watch.Interface {
	f := filling{s, c, make(chan watch.Event, atOnce), make(chan watch.Event)}
	w := watch.NewProxyWatcher(f.out)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-w.StopChan():
		case <-ctx.Done():
		}
		cancel()
		src.Stop()
	}()
	go func() {
		defer close(f.in)
		for e := range src.ResultChan() {
			select {
			case f.in <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		defer close(f.out)
		defer cancel()
		for e := range f.in {
			if !f.pass(ctx, f.waiting(e)) {
				return
			}
		}
	}()
	return w
}

// waiting is first and the events that have come behind it.
func (f *filling) waiting(first watch.Event) []watch.Event {
	events := []watch.Event{first}
	for len(events) < atOnce {
		select {
		case e, ok := <-f.in:
			if !ok {
				return events
			}
			events = append(events, e)
		default:
			return events
		}
	}
	return events
}

// pass hands the events on, and is false when the watch is to end.
func (f *filling) pass(ctx context.Context, events []watch.Event) bool {
	full, err := f.read(ctx, events)
	if err != nil {
		return false
	}
	for _, e := range events {
		if m, ok := e.Object.(*metav1.PartialObjectMetadata); ok {
			n := f.node(m, full[m.Name], e.Type)
			if n == nil {
				continue
			}
			e.Object = n
		}
		select {
		case f.out <- e:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// read reads the nodes of the events that have to be read in full, by name; nil stands for one that is gone. It tries
// until ctx is done: an event that were passed over would not come again.
func (f *filling) read(ctx context.Context, events []watch.Event) (map[string]*corev1.Node, error) {
	versions := map[string]string{}
	for _, e := range events {
		if m, ok := e.Object.(*metav1.PartialObjectMetadata); ok && f.lacks(m, e.Type) {
			versions[m.Name] = m.ResourceVersion
		}
	}
	names := slices.Collect(maps.Keys(versions))
	got := make([]*corev1.Node, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(reads)
	for i, name := range names {
		group.Go(func() error {
			return f.store.retry(ctx, taskWatch, func() (err error) {
				got[i], err = f.store.api.leanNode(ctx, f.store.lean(), name, versions[name])
				return err
			})
		})
	}
	err := group.Wait()
	full := make(map[string]*corev1.Node, len(names))
	for i, name := range names {
		full[name] = got[i]
	}
	return full, err
}

// lacks says whether metadata is not enough.
func (f *filling) lacks(m *metav1.PartialObjectMetadata, t watch.EventType) bool {
	if t != watch.Added && t != watch.Modified {
		return false
	}
	return m.Name == f.nodes.self || m.Annotations[f.store.notes.managed] == "true" && f.nodes.podCIDRs(m.Name, m.UID) == nil
}

// node is m as a Node. Nil: what m tells of is gone already, and another event will say so.
func (f *filling) node(m *metav1.PartialObjectMetadata, full *corev1.Node, t watch.EventType) *corev1.Node {
	n := f.nodes.trim(&corev1.Node{ObjectMeta: m.ObjectMeta})
	if !f.lacks(m, t) {
		n.Spec.PodCIDRs = f.nodes.podCIDRs(m.Name, m.UID)
		return n
	}
	if full == nil || full.UID != m.UID {
		return nil
	}
	if m.Name == f.nodes.self {
		full.ResourceVersion = m.ResourceVersion // of the event: from it the watch goes on
		return full
	}
	n.Spec = full.Spec
	return n
}

// podCIDRs are those of a node that is known already, nil if it is not or had none.
func (c *nodes) podCIDRs(name string, uid types.UID) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[name]; ok && e.uid == string(uid) && e.podCIDRs != "" {
		return split(e.podCIDRs)
	}
	return nil
}
