package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/subnet"
)

// nodes is the cache of one Watch. A cache.Reflector fills it: from a complete list first, then from a watch,
// and from a complete list again whenever the watch cannot be resumed. A node that was deleted in between is
// thus simply not in the list.
type nodes struct {
	notes   annotations
	self    string
	changed chan struct{} // the snapshot may have changed
	wakeOwn func()        // the own node changed

	mu      sync.Mutex
	entries map[string]*entry
	synced  bool
	version int // counts changes of peers
}

// entry is a node and, if it is a peer, its lease or why there is none.
type entry struct {
	record
	lease subnet.Lease
	err   error
}

func (s *Store) newNodes() *nodes {
	return &nodes{notes: s.notes, self: s.node, changed: make(chan struct{}, 1), wakeOwn: s.own.wake}
}

// mark says that the snapshot may have changed.
func (c *nodes) mark() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Add implements cache.ReflectorStore.
func (c *nodes) Add(obj any) error { return c.Update(obj) }

// Update implements cache.ReflectorStore.
func (c *nodes) Update(obj any) error {
	n, err := asNode(obj)
	if err != nil {
		return err
	}
	r := c.notes.record(n, n.Name == c.self)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(c.entries, r)
	return nil
}

// Delete implements cache.ReflectorStore.
func (c *nodes) Delete(obj any) error {
	n, err := asNode(obj)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.entries[n.Name]
	delete(c.entries, n.Name)
	if ok {
		c.note(old.record)
	}
	return nil
}

// Replace implements cache.ReflectorStore: objs is all that there is.
func (c *nodes) Replace(objs []any, _ string) error {
	records := make([]record, 0, len(objs))
	for _, obj := range objs {
		n, err := asNode(obj)
		if err != nil {
			return err
		}
		records = append(records, c.notes.record(n, n.Name == c.self))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(records)
	return nil
}

func (c *nodes) replace(records []record) {
	next := make(map[string]*entry, len(records))
	for _, r := range records {
		if old, ok := c.entries[r.name]; ok {
			next[r.name] = old
		}
		c.put(next, r)
	}
	for name, old := range c.entries {
		if _, ok := next[name]; !ok {
			c.note(old.record)
		}
	}
	c.entries = next
	if !c.synced {
		c.synced = true
		c.mark()
		c.wakeOwn()
	}
}

// put enters r, and does nothing if it says what is known.
func (c *nodes) put(entries map[string]*entry, r record) {
	old, ok := entries[r.name]
	if ok && old.record == r {
		return
	}
	e := &entry{record: r}
	if r.isPeer() {
		e.lease, e.err = c.notes.lease(r)
	}
	entries[r.name] = e
	if ok && old.isPeer() != r.isPeer() {
		c.note(old.record)
	}
	c.note(r)
}

// note tells who depends on r that it changed; nodes that are no peers concern nobody.
func (c *nodes) note(r record) {
	switch {
	case r.name == c.self:
		c.wakeOwn()
	case r.isPeer():
		c.version++
	default:
		return
	}
	c.mark()
}

// Resync implements cache.ReflectorStore; nothing here is resynced.
func (c *nodes) Resync() error { return nil }

// trim is what the store wants of n.
func (c *nodes) trim(n *corev1.Node) *corev1.Node {
	t := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp,
		Annotations: map[string]string{},
	}}
	for k, v := range n.Annotations {
		if strings.HasPrefix(k, c.notes.prefix) {
			t.Annotations[k] = v
		}
	}
	t.Spec.PodCIDR, t.Spec.PodCIDRs = n.Spec.PodCIDR, n.Spec.PodCIDRs
	if n.Name == c.self {
		t.Status.Conditions = n.Status.Conditions
	}
	return t
}

func asNode(obj any) (*corev1.Node, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("watch nodes: the API server sent a %T", obj)
	}
	return n, nil
}

// ownRecord is this node's record, and whether the cache is in sync and has it.
func (c *nodes) ownRecord() (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[c.self]
	if !ok {
		return record{}, false
	}
	return e.record, true
}

// peers are the other nodes' leases, oldest first, what could not be read, and the version of both; false: the
// cache was never in sync.
func (c *nodes) peers() ([]subnet.Lease, []subnet.Skip, int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := make([]*entry, 0, len(c.entries))
	for _, e := range c.entries {
		if e.name != c.self && e.isPeer() {
			others = append(others, e)
		}
	}
	slices.SortFunc(others, func(a, b *entry) int { return a.compare(b.record) })
	leases, skips := make([]subnet.Lease, 0, len(others)), []subnet.Skip(nil)
	for _, e := range others {
		if e.err != nil {
			skips = append(skips, subnet.Skip{Node: e.name, Reason: e.err.Error()})
		} else {
			leases = append(leases, e.lease)
		}
	}
	return leases, skips, c.version, c.synced
}
