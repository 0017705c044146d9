package enforce

import (
	"sync"

	"github.com/twill-net/twill/policy"
)

// most bounds the pods whose changes wait. With more it is cheaper to make the table anew.
const most = 2000

// inbox is what happened since the loop looked last.
type inbox struct {
	mu sync.Mutex
	news
}

// news is what happened.
type news struct {
	rules    bool // the table has to be made anew
	leases   bool // nodes' leases changed
	pods     []policy.PodChange
	snapshot func() policy.Snapshot // nil: the source has nothing yet
	tables   bool                   // the kernel's tables may have changed
	ports    bool                   // the pods' ports may have changed
	last     int                    // the number of the last change; the first is 1
}

// put adds a change.
func (b *inbox) put(c policy.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.rules = b.rules || c.Rules
	b.snapshot = c.Snapshot
	if b.pods = append(b.pods, c.Pods...); len(b.pods) > most {
		b.rules = true
	}
	if b.rules {
		b.pods = nil
	}
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

// take returns what happened, and forgets it but for the snapshot.
func (b *inbox) take() news {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.news
	b.news = news{snapshot: n.snapshot, last: n.last}
	return n
}
