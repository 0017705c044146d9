package enforce

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate/conntrack"
	"github.com/twill-net/twill/policy"
)

// Connections are those that the kernel tracks.
type Connections interface {
	// Each calls a function with each connection.
	Each(f func(conntrack.Connection)) error
}

const (
	// rest is how many times longer than a look at all connections the pause after it is, at most longestRest: changes may
	// come faster than the kernel lists tens of thousands of connections.
	rest        = 4
	longestRest = time.Second

	// lookAgain is how long after a look that found denied connections the next one is: nothing tells of their ends.
	lookAgain = 10 * time.Second
)

// judgeConnections finds the pods with open connections that the policies have come to deny: whenever they may have, once at the
// start, for connections may be older than the agent, and from time to time while there are some. The connections stay. If they
// were deleted, the next packet of an answer would begin them anew, in the other direction, which policies may allow.
func (e *Enforcer) judgeConnections(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.denies:
		case <-again:
		}
		began := time.Now()
		e.tableMu.Lock()
		table := e.table
		e.tableMu.Unlock()
		if table == nil {
			continue // a new one is on its way
		}
		denied, err := e.deniedPods(table)
		e.setDenied(denied, err)
		pause := min(rest*time.Since(began), longestRest)
		if err != nil {
			e.causes.Error(e.Log, "look for open connections that network policies deny", err)
			loop.Notify(e.denies)
			pause = longestRest
		}
		if again = nil; len(denied) > 0 {
			again = time.After(lookAgain)
		}
		loop.Sleep(ctx, pause)
	}
}

// Denied returns the addresses of this node's pods that have an open connection which policies deny, or an error while that is
// not known. The caller must not alter them.
func (e *Enforcer) Denied() (map[netip.Addr]bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.denied, e.judged
}

// DeniedChanged notifies when Denied returns something else.
func (e *Enforcer) DeniedChanged() <-chan struct{} { return e.rejudged }

func (e *Enforcer) setDenied(denied map[netip.Addr]bool, err error) {
	e.Metrics.denied.Set(float64(len(denied)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if (err == nil) != (e.judged == nil) || !maps.Equal(denied, e.denied) {
		loop.Notify(e.rejudged)
	}
	e.denied, e.judged = denied, err
}

// deniedPods returns the addresses of this node's pods that have an open connection which a table denies. Many connections are to
// the same port of one pod.
func (e *Enforcer) deniedPods(table *policy.Table) (map[netip.Addr]bool, error) {
	denied, seen := map[netip.Addr]bool{}, map[conntrack.Connection]bool{}
	err := e.Connections.Each(func(c conntrack.Connection) {
		same := c
		same.From = netip.AddrPortFrom(c.From.Addr(), 0)
		if seen[same] || denied[c.From.Addr()] || denied[c.To.Addr()] {
			return
		}
		seen[same] = true
		e.tableMu.Lock()
		defer e.tableMu.Unlock()
		if pod := table.Denied(c.From, c.To, c.Protocol); pod.IsValid() {
			denied[pod] = true
		}
	})
	return denied, err
}
