package kube

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/twill-net/twill/subnet"
)

// nodes is the store that a reflector keeps in sync with the Nodes' metadata, and the queue of those that have to be
// read beyond it: a peer whose podCIDRs are not known, and this node's own, whose status is wanted too.
type nodes struct {
	annotations annotations
	self        string
	changed     chan struct{} // the snapshot may have changed
	ownChanged  func()        // this node's record changed
	podCIDRs    *podCIDRs
	queue       workqueue.TypedRateLimitingInterface[string] // names of Nodes to read
	relist      time.Time                                    // when all are listed again; of the reflector only

	mu      sync.Mutex
	entries map[string]*entry
	order   []*entry // the same, oldest first
	synced  bool
	version int  // counts changes of peers
	delayed bool // a notification is on its way
}

var (
	_ cache.ReflectorStore         = (*nodes)(nil)
	_ cache.ResourceVersionUpdater = (*nodes)(nil)
)

// entry is a node and, if it is a peer, its lease or why there is none.
type entry struct {
	record
	unread bool // it is a peer whose podCIDRs have not been read yet
	lease  subnet.Lease
	err    error
	budget *rate.Limiter // of changes that notify at once; nil until the first one
}

// A Node that had no podCIDR, or could not be read, is read again after a time that grows from leastWait to mostWait.
// This node's own is read ownWait after a change, with all changes in between.
const (
	leastWait, mostWait = 500 * time.Millisecond, time.Minute
	ownWait             = 100 * time.Millisecond
)

func (s *Store) newNodes() *nodes {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](leastWait, mostWait)
	return &nodes{annotations: s.annotations, self: s.node, changed: make(chan struct{}, 1), ownChanged: s.own.notify,
		podCIDRs: &s.podCIDRs, queue: workqueue.NewTypedRateLimitingQueue(limiter), entries: map[string]*entry{}}
}

// A peer's changes notify at once, and beyond changesAtOnce with all that come within changesDelay: a snapshot of
// thousands of peers costs milliseconds, and one node shall not make all others pay for that as often as it likes.
const changesAtOnce, changesDelay = 5, time.Second

// notify signals that the snapshot may have changed.
func (c *nodes) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// trim removes what records do not have, before thousands of Nodes are held at once.
func (a annotations) trim(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Labels, m.OwnerReferences, m.Finalizers = nil, nil, nil, nil
	maps.DeleteFunc(m.Annotations, func(name, _ string) bool { return !strings.HasPrefix(name, a.prefix) })
}

// known returns the record of a Node, with its podCIDRs if these are known.
func (c *nodes) known(m *metav1.ObjectMeta) record {
	r := c.annotations.record(m)
	r.podCIDRs = c.podCIDRs.get(r.uid)
	return r
}

// lacks reports whether a Node has to be read because of its podCIDRs.
func (c *nodes) lacks(r record) bool { return r.name != c.self && r.isPeer() && r.podCIDRs == "" }

// Add implements cache.ReflectorStore.
func (c *nodes) Add(obj any) error { return c.Update(obj) }

// Update implements cache.ReflectorStore.
func (c *nodes) Update(obj any) error {
	r := c.known(&obj.(*metav1.PartialObjectMetadata).ObjectMeta)
	if r.name == c.self {
		c.queue.AddAfter(r.name, ownWait)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.entries[r.name]
	stranger := c.lacks(r) && (!ok || old.uid != r.uid || !old.isPeer())
	if stranger {
		c.queue.Forget(r.name)
		c.queue.Add(r.name)
	}
	c.put(entry{record: r, unread: stranger || c.lacks(r) && old.unread})
	return nil
}

// Delete implements cache.ReflectorStore.
func (c *nodes) Delete(obj any) error {
	m := &obj.(*metav1.PartialObjectMetadata).ObjectMeta
	c.podCIDRs.remove(m.UID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.entries[m.Name]; ok {
		delete(c.entries, m.Name)
		c.drop(old)
		c.note(old)
	}
	return nil
}

// Replace implements cache.ReflectorStore: a node that was deleted while nobody watched is simply not in the list.
// What is in it was read already: a peer without a podCIDR may get one later.
func (c *nodes) Replace(list []any, version string) error {
	all := make([]record, len(list))
	for i, obj := range list {
		all[i] = c.known(&obj.(*metav1.PartialObjectMetadata).ObjectMeta)
	}
	c.podCIDRs.retain(all)
	slices.SortFunc(all, record.compare) // each then comes behind the last one
	c.mu.Lock()
	defer c.mu.Unlock()
	there := make(map[string]bool, len(all))
	for _, r := range all {
		there[r.name] = true
		if r.name == c.self {
			continue
		}
		if c.lacks(r) {
			c.queue.AddRateLimited(r.name)
		}
		c.put(entry{record: r})
	}
	c.order = slices.DeleteFunc(c.order, func(old *entry) bool {
		if there[old.name] {
			return false
		}
		delete(c.entries, old.name)
		c.note(old)
		return true
	})
	if !c.synced {
		c.synced = true
		c.notify()
		c.ownChanged()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (c *nodes) Resync() error { return nil }

// UpdateResourceVersion implements cache.ResourceVersionUpdater.
func (c *nodes) UpdateResourceVersion(version string) { c.podCIDRs.advance(version) }

// needed reports whether a Node of the queue is still to be read.
func (c *nodes) needed(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[name]
	return name == c.self || ok && c.lacks(e.record)
}

// learned completes a peer's record. Its annotations come from the watch, which may be further than the read was.
func (c *nodes) learned(name string) (complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[name]
	if !ok {
		return true
	}
	r := e.record
	r.podCIDRs = c.podCIDRs.get(r.uid)
	c.put(entry{record: r})
	return !c.lacks(r)
}

// putOwn enters this node's own record.
func (c *nodes) putOwn(n *node) {
	c.podCIDRs.put(n.UID, n.Spec.podCIDRs())
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.put(entry{record: c.annotations.own(n)}) {
		c.ownChanged() // it says what it said before, but may have said something else in between
	}
}

// put enters e, and reports whether it says anything new. It moves what changed, not everything: a node may change as
// often as it likes.
func (c *nodes) put(e entry) bool {
	old, ok := c.entries[e.name]
	if ok && old.record == e.record && old.unread == e.unread {
		return false
	}
	if e.isPeer() && !e.unread {
		e.lease, e.err = c.annotations.lease(e.record)
	}
	if ok {
		if e.budget = old.budget; e.budget == nil {
			e.budget = rate.NewLimiter(rate.Every(changesDelay), changesAtOnce)
		}
	}
	if ok && old.isPeer() && !e.isPeer() {
		c.note(old)
	}
	if ok && old.created.Equal(e.created) {
		*old = e
	} else {
		if ok {
			c.drop(old)
		}
		c.entries[e.name] = &e
		at, _ := c.position(&e)
		c.order = slices.Insert(c.order, at, &e)
	}
	c.note(&e)
	return true
}

// position returns where e stands in the order, or would, and whether it does.
func (c *nodes) position(e *entry) (int, bool) {
	return slices.BinarySearchFunc(c.order, e, func(a, b *entry) int { return a.compare(b.record) })
}

// drop takes e out of the order.
func (c *nodes) drop(e *entry) {
	if at, ok := c.position(e); ok {
		c.order = slices.Delete(c.order, at, at+1)
	}
}

// note notifies who depends on e; nodes that are no peers concern nobody.
func (c *nodes) note(e *entry) {
	switch {
	case e.name == c.self:
		c.ownChanged()
		c.notify()
	case e.isPeer():
		c.version++
		if e.budget == nil || e.budget.Allow() {
			c.notify()
		} else {
			c.notifyLater()
		}
	}
}

// notifyLater notifies of all changes of the next changesDelay together.
func (c *nodes) notifyLater() {
	if c.delayed {
		return
	}
	c.delayed = true
	time.AfterFunc(changesDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.delayed = false
		c.notify()
	})
}

// ownRecord returns this node's record, and whether the cache has it.
func (c *nodes) ownRecord() (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[c.self]
	if !ok {
		return record{}, false
	}
	return e.record, true
}

// peers returns the other nodes' leases, oldest first, what could not be read, and the version of both; false: the
// cache was never in sync.
func (c *nodes) peers() ([]subnet.Lease, []subnet.Skip, int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	leases, skips := make([]subnet.Lease, 0, len(c.order)), []subnet.Skip(nil)
	for _, e := range c.order {
		switch {
		case e.name == c.self || !e.isPeer() || e.unread:
		case e.err != nil:
			skips = append(skips, subnet.Skip{Node: e.name, Code: subnet.Unreadable, Detail: e.err.Error()})
		default:
			leases = append(leases, e.lease)
		}
	}
	return leases, skips, c.version, c.synced
}
