// Package cloudtest has a cloud in memory, and the suite that each implementation of cloud.Cloud passes.
package cloudtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/cloud"
)

// Memory is a network whose tables are in memory. All nodes of a test share one.
type Memory struct {
	mu     sync.Mutex
	routes []cloud.Route
	calls  int
	writes int
	// Full is how many routes a table may have; 0: any number.
	Full int
	// Lag is how long a write is invisible to List.
	Lag  time.Duration
	old  []cloud.Route
	when time.Time
	// Fail, if set, may fail a call before it is carried out.
	Fail func(call string) error
}

// Node returns the API as the node with this target sees it.
func (m *Memory) Node(target string, tables ...string) cloud.Cloud {
	return &node{m, cloud.Self{Target: target, Network: "vpc-1", Tables: tables}}
}

// Routes returns what the tables hold now.
func (m *Memory) Routes() []cloud.Route {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.routes)
}

// Calls returns how many calls were made, and how many of them were writes.
func (m *Memory) Calls() (all, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls, m.writes
}

// Set replaces the routes, as somebody does who is no node.
func (m *Memory) Set(routes ...cloud.Route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.routes, m.old = slices.Clone(routes), nil
}

func (m *Memory) call(name string) error {
	m.calls++
	if m.Fail != nil {
		return m.Fail(name)
	}
	return nil
}

type node struct {
	*Memory
	self cloud.Self
}

func (n *node) Self(context.Context, []netip.Addr) (cloud.Self, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self, n.call("Self")
}

func (n *node) List(context.Context, cloud.Self) ([]cloud.Route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("List"); err != nil {
		return nil, err
	}
	if n.old != nil && time.Since(n.when) < n.Lag {
		return slices.Clone(n.old), nil
	}
	return slices.Clone(n.routes), nil
}

func (n *node) Apply(_ context.Context, _ cloud.Self, c cloud.Change) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.call("Apply"); err != nil {
		return err
	}
	n.writes++
	i := slices.IndexFunc(n.routes, func(r cloud.Route) bool { return r.Table == c.Route.Table && r.Dst == c.Route.Dst })
	before := slices.Clone(n.routes)
	switch {
	case c.Op == cloud.Create && i >= 0:
		return fmt.Errorf("%s: %w", c.Route, cloud.ErrExists)
	case c.Op == cloud.Create && n.Full > 0 && len(n.routes) >= n.Full:
		return fmt.Errorf("table %q has %d routes: %w", c.Route.Table, len(n.routes), cloud.ErrFull)
	case c.Op == cloud.Create:
		n.routes = append(n.routes, c.Route)
	case i < 0:
		return fmt.Errorf("%s: %w", c.Route, cloud.ErrGone)
	case c.Op == cloud.Replace:
		n.routes[i] = c.Route
	default:
		n.routes = slices.Delete(n.routes, i, i+1)
	}
	if n.Lag > 0 {
		n.old, n.when = before, time.Now()
	}
	return nil
}

func (n *node) Check(context.Context, cloud.Self) ([]cloud.Trouble, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return nil, n.call("Check")
}
