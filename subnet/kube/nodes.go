package kube

import (
	"slices"
	"sync"

	"github.com/twill-net/twill/subnet"
)

// nodes is the cache of one Watch: filled from a complete list first, then from a watch, and from a complete list again
// whenever the watch cannot be resumed. A node that was deleted in between is thus simply not in the list.
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

// update enters what is known of a node now.
func (c *nodes) update(r record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(c.entries, r)
}

// remove forgets a node.
func (c *nodes) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.entries[name]
	delete(c.entries, name)
	if ok {
		c.note(old.record)
	}
}

// replace enters all nodes that there are.
func (c *nodes) replace(all []*node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]*entry, len(all))
	for _, n := range all {
		if n.gone {
			continue
		}
		if old, ok := c.entries[n.name]; ok {
			next[n.name] = old
		}
		c.put(next, n.record)
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
			skips = append(skips, subnet.Skip{Node: e.name, Code: subnet.Unreadable, Detail: e.err.Error()})
		} else {
			leases = append(leases, e.lease)
		}
	}
	return leases, skips, c.version, c.synced
}
