// Package fake plays a cloud's network: network interfaces, routing tables and their faults. Memory is the API itself, without
// a wire; each provider's front serves the same Network by the provider's protocol. Labs run one beside a router whose kernel
// follows it.
package fake

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/cloud"
)

// Network is a cloud's network. All nodes of a test share one.
type Network struct {
	ID string // vpc-1; of GCE projects/p/global/networks/n

	mu      sync.Mutex
	nics    []NIC
	tables  []Table
	routes  []cloud.Route
	old     []cloud.Route // what List still returns
	when    time.Time     // of the last write
	calls   int
	writes  int
	faults  Faults
	changed func()
}

// NIC is a machine's network interface.
type NIC struct {
	ID       string       `json:"id"`       // what routes name as their target
	Instance string       `json:"instance"` // the machine's ID or name
	MAC      string       `json:"mac"`
	Addrs    []netip.Addr `json:"addrs"`    // IPv4 first
	Subnet   string       `json:"subnet"`   // to which a table may belong
	Forwards bool         `json:"forwards"` // the provider lets packets pass that are not from or for Addrs
}

// Table is a routing table. Packets from NICs of its subnets are routed by it; Main is that of all other subnets.
type Table struct {
	ID      string   `json:"id"`
	Subnets []string `json:"subnets,omitempty"`
	Main    bool     `json:"main,omitempty"`
}

// Faults are what a Network does to its callers. The zero value is none.
type Faults struct {
	Full   int                       `json:"full,omitempty"`   // how many routes a table may have; 0: any number
	Lag    time.Duration             `json:"lag,omitempty"`    // how long List does not show a write
	Denied []string                  `json:"denied,omitempty"` // permissions that the node's role lacks, as the provider names them
	Away   bool                      `json:"away,omitempty"`   // no request is answered
	Busy   bool                      `json:"busy,omitempty"`   // every change is refused, as if another one were under way
	Thief  string                    `json:"thief,omitempty"`  // takes each route that is written: it becomes the target
	Fail   func(method string) error `json:"-"`                // fails a call (Self, List, Apply, Check) before it is carried out
}

// Break sets the faults.
func (n *Network) Break(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// Faults returns what Break set.
func (n *Network) Faults() Faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults
}

// Changed has f called after each change of the routes or NICs.
func (n *Network) Changed(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = f
}

// edit changes the network, and tells of it.
func (n *Network) edit(f func()) {
	n.mu.Lock()
	f()
	tell := n.changed
	n.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// AddNIC adds a NIC, or replaces the one with its ID.
func (n *Network) AddNIC(nic NIC) {
	n.edit(func() {
		n.nics = append(slices.DeleteFunc(n.nics, func(o NIC) bool { return o.ID == nic.ID }), nic)
	})
}

// RemoveNIC removes a NIC with its machine. Routes to it lead nowhere from then on.
func (n *Network) RemoveNIC(id string) {
	n.edit(func() {
		n.nics = slices.DeleteFunc(n.nics, func(o NIC) bool { return o.ID == id })
		for i := range n.routes {
			if n.routes[i].Target == id {
				n.routes[i].State = cloud.Blackhole
			}
		}
	})
}

// NICs returns all NICs.
func (n *Network) NICs() []NIC {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.nics)
}

// NIC returns the one that f is true for, and reports whether there is one.
func (n *Network) NIC(f func(NIC) bool) (NIC, bool) {
	all := n.NICs()
	if i := slices.IndexFunc(all, f); i >= 0 {
		return all[i], true
	}
	return NIC{}, false
}

// SetForwards turns a NIC's forwarding on or off, and reports whether there is such a NIC.
func (n *Network) SetForwards(id string, on bool) (found bool) {
	n.edit(func() {
		for i := range n.nics {
			if n.nics[i].ID == id {
				n.nics[i].Forwards, found = on, true
			}
		}
	})
	return found
}

// AddTable adds a table.
func (n *Network) AddTable(t Table) { n.edit(func() { n.tables = append(n.tables, t) }) }

// SetTables replaces all tables.
func (n *Network) SetTables(all ...Table) { n.edit(func() { n.tables = slices.Clone(all) }) }

// Tables returns all tables. A network without any has one routing table for all, of which Route.Table is empty.
func (n *Network) Tables() []Table {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.tables)
}

// TableOf returns the table of a subnet, and reports whether there is one.
func (n *Network) TableOf(subnet string) (Table, bool) {
	all := n.Tables()
	i := slices.IndexFunc(all, func(t Table) bool { return slices.Contains(t.Subnets, subnet) })
	if i < 0 {
		i = slices.IndexFunc(all, func(t Table) bool { return t.Main })
	}
	if i < 0 {
		return Table{}, false
	}
	return all[i], true
}

// Routes returns what the tables hold now.
func (n *Network) Routes() []cloud.Route {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.routes)
}

// Visible returns what the tables hold as a reader sees it: a write may be missing for a while.
func (n *Network) Visible() []cloud.Route {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.old != nil && time.Since(n.when) < n.faults.Lag {
		return slices.Clone(n.old)
	}
	return slices.Clone(n.routes)
}

// Set replaces the routes, as somebody does who is no node.
func (n *Network) Set(routes ...cloud.Route) {
	n.edit(func() { n.routes, n.old = slices.Clone(routes), nil })
}

// Calls returns how many calls were made, and how many of them were writes.
func (n *Network) Calls() (all, writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls, n.writes
}

// Call counts a call of a method of cloud.Cloud, and returns with what it is to fail.
func (n *Network) Call(method string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	if n.faults.Fail != nil {
		return n.faults.Fail(method)
	}
	return nil
}

// Apply makes one change. Its errors are of the classes of package cloud.
func (n *Network) Apply(c cloud.Change) (err error) {
	n.edit(func() { err = n.apply(c) })
	return err
}

func (n *Network) apply(c cloud.Change) error {
	is := c.Route
	if c.Op == cloud.Replace {
		is = c.Old
	}
	i := slices.IndexFunc(n.routes, func(r cloud.Route) bool { return r.Table == is.Table && r.Dst == is.Dst && r.Target == is.Target })
	if i < 0 {
		i = slices.IndexFunc(n.routes, func(r cloud.Route) bool { return r.Table == c.Route.Table && r.Dst == c.Route.Dst })
	}
	inTable := 0
	for _, r := range n.routes {
		if r.Table == c.Route.Table {
			inTable++
		}
	}
	before := slices.Clone(n.routes)
	if n.faults.Thief != "" && c.Op != cloud.Delete {
		c.Route.Target = n.faults.Thief
	}
	switch {
	case n.faults.Busy:
		return fmt.Errorf("%s: %w", c.Route, cloud.ErrBusy)
	case c.Op == cloud.Create && i >= 0:
		return fmt.Errorf("%s: %w", c.Route, cloud.ErrExists)
	case c.Op == cloud.Create && n.faults.Full > 0 && inTable >= n.faults.Full:
		return fmt.Errorf("table %q has %d routes: %w", c.Route.Table, inTable, cloud.ErrFull)
	case c.Op == cloud.Create:
		n.routes = append(n.routes, c.Route)
	case i < 0:
		return fmt.Errorf("%s: %w", c.Route, cloud.ErrGone)
	case c.Op == cloud.Replace:
		n.routes[i] = c.Route
	default:
		n.routes = slices.Delete(n.routes, i, i+1)
	}
	n.writes++
	n.old, n.when = before, time.Now()
	return nil
}

// Node returns the API as the node with this NIC sees it, without a wire. The tables are its Self's.
func (n *Network) Node(nic string, tables ...string) cloud.Cloud {
	return &node{n, cloud.Self{Target: nic, Network: n.ID, Tables: tables}}
}

type node struct {
	*Network
	self cloud.Self
}

// Self implements cloud.Cloud.
func (n *node) Self(ctx context.Context, local []netip.Addr) (cloud.Self, error) {
	if err := n.answer(ctx, "Self"); err != nil {
		return cloud.Self{}, err
	}
	nic, ok := n.NIC(func(nic NIC) bool { return nic.ID == n.self.Target })
	if ok && !slices.ContainsFunc(local, func(a netip.Addr) bool { return slices.Contains(nic.Addrs, a) }) {
		return cloud.Self{}, fmt.Errorf("%s has none of the addresses %v", nic.ID, local)
	}
	return n.self, nil
}

// List implements cloud.Cloud.
func (n *node) List(ctx context.Context, _ cloud.Self) ([]cloud.Route, error) {
	if err := n.answer(ctx, "List"); err != nil {
		return nil, err
	}
	return n.Visible(), nil
}

// Apply implements cloud.Cloud.
func (n *node) Apply(ctx context.Context, _ cloud.Self, c cloud.Change) error {
	if err := n.answer(ctx, "Apply"); err != nil {
		return err
	}
	return n.Network.Apply(c)
}

// Check implements cloud.Cloud.
func (n *node) Check(ctx context.Context, self cloud.Self) ([]cloud.Trouble, error) {
	if err := n.answer(ctx, "Check"); err != nil {
		return nil, err
	}
	nic, ok := n.NIC(func(nic NIC) bool { return nic.ID == self.Target })
	if ok && !nic.Forwards {
		return []cloud.Trouble{{ID: cloud.ForwardingOff, Object: nic.ID, Actual: "off"}}, nil
	}
	return nil, nil
}

func (n *node) answer(ctx context.Context, method string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return n.Call(method)
}
