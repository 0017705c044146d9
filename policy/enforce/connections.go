package enforce

import (
	"context"
	"net/netip"
	"time"

	"github.com/twill-net/twill/netstate/conntrack"
	"github.com/twill-net/twill/policy"
)

// Connections are those that the kernel tracks.
type Connections interface {
	// Mark marks the connections for which a function returns true, so that their packets do not take the fast path, and
	// takes the mark off the others. It returns how many it has marked.
	Mark(denied func(conntrack.Connection) bool) (marked int, err error)
}

const (
	// rest is how many times longer than a look at all connections the pause after it is, at most longestRest: changes may
	// come faster than the kernel lists tens of thousands of connections.
	rest        = 4
	longestRest = time.Second
)

// markConnections has the packets of open connections judged that the policies have come to deny: whenever they may have,
// and once at the start, for connections may be older than the agent. The connections stay. If they were deleted, the next
// packet of an answer would begin them anew, in the other direction, which policies may allow.
func (e *Enforcer) markConnections(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.denies:
		}
		began := time.Now()
		e.tableMu.Lock()
		table := e.table
		e.tableMu.Unlock()
		if table == nil {
			continue // a new one is on its way
		}
		marked, err := e.Connections.Mark(e.denied(table))
		e.Metrics.marked.Add(float64(marked))
		e.setJudged(err)
		pause := min(rest*time.Since(began), longestRest)
		if err != nil {
			e.causes.Error(e.Log, "look for open connections that network policies deny", err)
			signal(e.denies)
			pause = longestRest
		}
		sleep(ctx, pause)
	}
}

// Judged returns nil while connections are marked as soon as policies deny them, or else why they are not.
func (e *Enforcer) Judged() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.judged
}

func (e *Enforcer) setJudged(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.judged = err
}

// denied returns what reports whether a table denies a connection. Many are to the same port of one pod.
func (e *Enforcer) denied(table *policy.Table) func(conntrack.Connection) bool {
	known := map[conntrack.Connection]bool{}
	return func(c conntrack.Connection) bool {
		same := c
		same.From = netip.AddrPortFrom(c.From.Addr(), 0)
		denied, ok := known[same]
		if !ok {
			e.tableMu.Lock()
			denied = table.Denied(c.From, c.To, c.Protocol)
			e.tableMu.Unlock()
			known[same] = denied
		}
		return denied
	}
}
