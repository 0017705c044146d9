package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
)

// Foreign is a range of addresses that a node has to do with and that is no pod's: its own address, its gateway's, or a
// network that it is on.
type Foreign struct {
	Prefix netip.Prefix // masked
	What   string       // "this node's own address on eth1", "the network of eth1"
}

// Excluder is a Store that can leave out subnets that cannot be this node's, whatever the store says.
type Excluder interface {
	// Exclude has Acquire return no subnet that contains one of these. A Store that chooses subnets takes another one; one
	// that is told them waits until the list or the subnet is another one. It can be called at any time, also while Acquire
	// waits.
	Exclude(list []Foreign)
}

// Exclusions is what a Store was told to leave out. The zero value is nothing. It is for concurrent use.
type Exclusions struct{ list atomic.Pointer[[]Foreign] }

// Exclude implements Excluder.
func (e *Exclusions) Exclude(list []Foreign) { e.list.Store(&list) }

// Excluded returns the ranges that could lie within a subnet of one of the pools: what is wider is no reason to leave
// out a part of it.
func (e *Exclusions) Excluded(pools []Pool) (prefixes []netip.Prefix) {
	for _, f := range e.all() {
		for _, p := range pools {
			if f.Prefix.Bits() >= p.SubnetLen && p.Network.Contains(f.Prefix.Addr()) {
				prefixes = append(prefixes, f.Prefix)
			}
		}
	}
	return prefixes
}

// Explain adds to the error of an allocation what subnets were left out for.
func (e *Exclusions) Explain(err error) error {
	if list := e.all(); err != nil && len(list) > 0 {
		return fmt.Errorf("%w; left out are those with %s, %s", err, text(list[0].Prefix), list[0].What)
	}
	return err
}

// Check returns an error if a subnet contains what is excluded.
func (e *Exclusions) Check(s netip.Prefix) error {
	for _, f := range e.all() {
		if f.In(s) {
			return fmt.Errorf("its subnet %s contains %s, %s: pods would take that from the node, choose another network "+
				"for them", s, text(f.Prefix), f.What)
		}
	}
	return nil
}

// In reports whether f lies within a subnet.
func (f Foreign) In(s netip.Prefix) bool {
	return f.Prefix.Bits() >= s.Bits() && s.Contains(f.Prefix.Addr())
}

// Holds reports whether f lies within one of the lease's subnets.
func (l Lease) Holds(f Foreign) bool {
	return slices.ContainsFunc(l.Stacks, func(s Stack) bool { return s.Subnet.IsValid() && f.In(s.Subnet) })
}

func (e *Exclusions) all() []Foreign {
	if list := e.list.Load(); list != nil {
		return *list
	}
	return nil
}

// text returns a prefix, or of a single address that alone.
func text(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
