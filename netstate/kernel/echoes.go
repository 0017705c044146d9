package kernel

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// echoes are the messages that Apply will cause and exceptFrom cannot know, because the kernel does not say in them who
// requested the change: those of forwarding entries (vxlan_fdb_notify; on 6.1 also rtnl_fdb_notify, without a destination), and
// of neighbours that are deleted (neigh_cleanup_and_release, seen on 6.1 and 6.18). Any goroutine may use them.
type echoes struct {
	mu     sync.Mutex
	due    map[echo]time.Time
	pruned time.Time
}

// echo is a message about a forwarding entry or a neighbour: its type, and what it says. A neighbour that goes has no MAC.
type echo struct {
	kind  uint16
	index int // of the interface
	mac   netstate.MAC
	dst   netip.Addr
}

// echoLasts is how long an echo is waited for. What was written and changed nothing has none, and somebody else may later
// cause the message that it would have been.
const echoLasts = time.Second

func (e *echoes) expect(m echo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if now.Sub(e.pruned) > echoLasts {
		due := map[echo]time.Time{}
		for m, at := range e.due {
			if now.Sub(at) < echoLasts {
				due[m] = at
			}
		}
		e.due, e.pruned = due, now
	}
	e.due[m] = now
}

// heard says whether a message is an echo, and forgets it if it is.
func (e *echoes) heard(kind uint16, data []byte) bool {
	n, err := parseEntry(data)
	if err != nil {
		return false
	}
	if data[0] == unix.AF_BRIDGE {
		if f, _ := decodeFDB("", n, nil); f.Extra != "" {
			return false // somebody else's: ours have nothing that stands in Extra
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := echo{kind, n.index, n.mac, n.dst}
	at, ok := e.due[key]
	delete(e.due, key)
	return ok && time.Since(at) < echoLasts
}
