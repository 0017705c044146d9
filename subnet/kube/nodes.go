package kube

import (
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// nodes is the store that a reflector keeps in sync with the Nodes' metadata, and the queue of those that have to be
// read beyond it: a peer whose podCIDRs are not known, and this node's own, whose status is wanted too.
type nodes struct {
	*records
	podCIDRs *podCIDRs
	queue    workqueue.TypedRateLimitingInterface[string] // names of Nodes to read
	selector string                                       // of fields: the Nodes that are read; empty: all
	relist   time.Time                                    // when all are listed again; of the reflector only
}

var (
	_ cache.ReflectorStore         = (*nodes)(nil)
	_ cache.ResourceVersionUpdater = (*nodes)(nil)
)

// A Node that had no podCIDR, or could not be read, is read again after a time that grows from leastWait to mostWait.
// This node's own is read ownWait after a change, with all changes in between.
const (
	leastWait, mostWait = 500 * time.Millisecond, time.Minute
	ownWait             = 100 * time.Millisecond
)

// newNodes makes the store of all Nodes.
func (s *Store) newNodes() *nodes {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](leastWait, mostWait)
	return &nodes{records: s.newRecords(), podCIDRs: &s.podCIDRs, queue: workqueue.NewTypedRateLimitingQueue(limiter)}
}

// newOwnNode makes the store of this node's own Node. What is known of other Nodes' podCIDRs is not its business.
func (s *Store) newOwnNode() *nodes {
	c := s.newNodes()
	c.podCIDRs, c.selector = &podCIDRs{}, fields.OneTermEqualSelector("metadata.name", s.node).String()
	return c
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
	c.remove(m.Name)
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
	c.replace(all, func(r record) bool { return r.name != c.self })
	for _, r := range all {
		if c.lacks(r) {
			c.queue.AddRateLimited(r.name)
		}
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
