package kube

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// records is a cache of what nodes publish, and of what their leases are, in the order of their age. Node objects or
// Lease objects feed it.
type records struct {
	annotations annotations
	self        string
	changed     chan struct{} // the snapshot may have changed
	ownChanged  func()        // this node's record changed

	mu      sync.Mutex
	entries map[string]*entry
	order   []*entry                 // the same, oldest first
	left    map[string]*rate.Limiter // the budgets of nodes that left since everything was listed
	synced  bool
	stale   bool // what came last of listing and watching failed
	version int  // counts changes of peers
	delayed bool // a notification is on its way
}

// entry is a node and, if it is a peer, its lease or why there is none.
type entry struct {
	record
	unread bool // it is a peer whose podCIDRs have not been read yet
	lease  subnet.Lease
	err    error
	budget *rate.Limiter // of changes that notify at once; nil until the first one
}

func (s *Store) newRecords() *records {
	return &records{annotations: s.annotations, self: s.node, changed: make(chan struct{}, 1),
		ownChanged: s.own.notify, entries: map[string]*entry{}, left: map[string]*rate.Limiter{}}
}

// A peer's changes notify at once, and beyond changesAtOnce with all that come within changesDelay: a snapshot of
// thousands of peers costs milliseconds, and one node shall not make all others pay for that as often as it likes.
const changesAtOnce, changesDelay = 5, time.Second

// limit gives e a budget, unless it has one.
func (e *entry) limit() {
	if e.budget == nil {
		e.budget = rate.NewLimiter(rate.Every(changesDelay), changesAtOnce)
	}
}

// notify signals that the snapshot may have changed.
func (c *records) notify() {
	loop.Notify(c.changed)
}

// remove forgets a node.
func (c *records) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave(name)
}

// leave is remove with mu held. The node may be back at once, and again and again.
func (c *records) leave(name string) {
	if old, ok := c.entries[name]; ok {
		delete(c.entries, name)
		c.drop(old)
		old.limit()
		c.left[name] = old.budget
		c.note(old)
	}
}

// replace enters those of all that are wanted, and forgets the nodes that are not in it.
func (c *records) replace(all []record, wanted func(record) bool) {
	slices.SortFunc(all, record.compare) // each then comes behind the last one
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.left)
	there := make(map[string]bool, len(all))
	for _, r := range all {
		there[r.name] = true
		if wanted(r) {
			c.put(entry{record: r})
		}
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
}

// put enters e, and reports whether it says anything new. It moves what changed, not everything: a node may change as
// often as it likes.
func (c *records) put(e entry) bool {
	old, ok := c.entries[e.name]
	if ok && old.record == e.record && old.unread == e.unread {
		return false
	}
	if e.isPeer() && !e.unread {
		e.lease, e.err = c.annotations.lease(e.record)
	}
	if ok {
		e.budget = old.budget
		e.limit()
	} else {
		e.budget = c.left[e.name]
		delete(c.left, e.name)
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
func (c *records) position(e *entry) (int, bool) {
	return slices.BinarySearchFunc(c.order, e, func(a, b *entry) int { return a.compare(b.record) })
}

// drop takes e out of the order.
func (c *records) drop(e *entry) {
	if at, ok := c.position(e); ok {
		c.order = slices.Delete(c.order, at, at+1)
	}
}

// note notifies who depends on e; nodes that are no peers concern nobody.
func (c *records) note(e *entry) {
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
func (c *records) notifyLater() {
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
func (c *records) ownRecord() (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[c.self]
	if !ok {
		return record{}, false
	}
	return e.record, true
}

// inSync reports whether everything has been listed once.
func (c *records) inSync() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

// setStale notes whether the API server may say something else by now.
func (c *records) setStale(stale bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale != stale {
		c.stale = stale
		c.notify()
	}
}

// current reports whether everything has been listed, and every change since then is on its way.
func (c *records) current() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced && !c.stale
}

// peers returns the other nodes' leases, oldest first, what could not be read, and the version of both.
func (c *records) peers() ([]subnet.Lease, []subnet.Skip, int) {
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
	return leases, skips, c.version
}
