package enforce

import "sync"

// inbox is what happened on this node since the loop looked last.
type inbox struct {
	mu sync.Mutex
	news
}

// news is what happened.
type news struct {
	leases bool // nodes' leases changed
	tables bool // the kernel's tables may have changed
	ports  bool // the pods' ports may have changed
	last   int  // how often somebody asked for ports; they are enforced together with what the source had then
}

// altered notes that the kernel has to be read.
func (b *inbox) altered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tables = true
}

// moved notes that nodes' leases changed.
func (b *inbox) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases = true
}

// plugged notes that ports have to be read, and returns the number of this change.
func (b *inbox) plugged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports = true
	b.last++
	return b.last
}

// take returns what happened, and forgets it.
func (b *inbox) take() news {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.news
	b.news = news{last: n.last}
	return n
}
