package kube

import (
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/subnet"
)

// nodes is the cache of one Watch: filled from a complete list first, then from a watch, and from a complete list again
// whenever the watch cannot be resumed. A node that was deleted in between is thus simply not in the list.
type nodes struct {
	notes   annotations
	self    string
	changed chan struct{} // the snapshot may have changed
	wakeOwn func()        // the own node changed

	known     *known
	strangers *strangers
	every     time.Duration // how often to list again, at least
	relist    time.Time     // when; of reflect only

	mu      sync.Mutex
	entries map[string]*entry
	order   []*entry // the same, oldest first
	synced  bool
	version int // counts changes of peers
}

// entry is a node and, if it is a peer, its lease or why there is none.
type entry struct {
	record
	unread bool // it is a peer whose podCIDRs have not been read yet
	lease  subnet.Lease
	err    error
}

func (s *Store) newNodes() *nodes {
	return &nodes{notes: s.notes, self: s.node, changed: make(chan struct{}, 1), wakeOwn: s.own.wake,
		known: &s.known, strangers: newStrangers(), every: relist, entries: map[string]*entry{}}
}

// mark says that the snapshot may have changed.
func (c *nodes) mark() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// lacks reports whether n, of which there is metadata, has to be read in full.
func (c *nodes) lacks(n *node) bool {
	return !n.whole && (n.name == c.self || n.isPeer() && c.known.get(n.uid) == "")
}

// learn completes n by what is known of it, or learns from it.
func (c *nodes) learn(n *node) {
	if n.podCIDRs == "" {
		n.podCIDRs = c.known.get(n.uid)
	} else {
		c.known.put(n.uid, n.podCIDRs)
	}
}

// update enters what an event says of a node.
func (c *nodes) update(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lacks := c.lacks(n)
	if lacks {
		c.strangers.add(n)
	}
	if n.name == c.self {
		return // all of it comes when it was read
	}
	c.learn(n)
	old, ok := c.entries[n.name]
	c.put(entry{record: n.record, unread: lacks && (!ok || old.uid != n.uid || old.unread)})
}

// resolved enters a node that was read in full, and reports whether nothing of it can be missing any more.
func (c *nodes) resolved(n *node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learn(n)
	old, ok := c.entries[n.name]
	switch {
	case n.name == c.self:
		if !c.put(entry{record: n.record}) {
			c.wakeOwn() // it says what it said before, but may have said something else between
		}
		return false
	case ok && old.uid == n.uid: // its annotations come from the watch, which may be further
		r := old.record
		r.podCIDRs = n.podCIDRs
		c.put(entry{record: r})
	}
	return n.podCIDRs != ""
}

// remove forgets a node that was deleted.
func (c *nodes) remove(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.forget(n.uid)
	c.strangers.remove(n.name)
	old, ok := c.entries[n.name]
	if ok {
		delete(c.entries, n.name)
		c.drop(old)
		c.note(old.record)
	}
}

// replace enters all nodes that there are.
func (c *nodes) replace(all []*node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.keep(all)
	c.strangers.clear()
	slices.SortFunc(all, func(a, b *node) int { return a.compare(b.record) }) // each then comes behind the last one
	there := make(map[string]bool, len(all))
	for _, n := range all {
		there[n.name] = true
		c.learn(n)
		c.put(entry{record: n.record})
	}
	c.order = slices.DeleteFunc(c.order, func(old *entry) bool {
		if there[old.name] {
			return false
		}
		delete(c.entries, old.name)
		c.note(old.record)
		return true
	})
	if !c.synced {
		c.synced = true
		c.mark()
		c.wakeOwn()
	}
}

// put enters e, and reports whether it says anything new. It moves what changed, not what there is: a node may change as
// often as it likes.
func (c *nodes) put(e entry) bool {
	old, ok := c.entries[e.name]
	if ok && old.record == e.record && old.unread == e.unread {
		return false
	}
	if e.isPeer() && !e.unread {
		e.lease, e.err = c.notes.lease(e.record)
	}
	if ok && old.isPeer() != e.isPeer() {
		c.note(old.record)
	}
	if ok && old.created.Equal(e.created) {
		*old = e
	} else {
		if ok {
			c.drop(old)
		}
		c.entries[e.name] = &e
		at, _ := c.place(&e)
		c.order = slices.Insert(c.order, at, &e)
	}
	c.note(e.record)
	return true
}

// place is where e stands in the order, or would, and whether it does.
func (c *nodes) place(e *entry) (int, bool) {
	return slices.BinarySearchFunc(c.order, e, func(a, b *entry) int { return a.compare(b.record) })
}

// drop takes e out of the order.
func (c *nodes) drop(e *entry) {
	if at, ok := c.place(e); ok {
		c.order = slices.Delete(c.order, at, at+1)
	}
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
