package transition

import (
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// Seen returns the snapshot that the backend b, of this type, of a node without another way should see: a peer that offers the
// way beside others publishes it alone, whatever the backend of its record is.
func Seen(kind string, b backend.Backend, snap subnet.Snapshot) subnet.Snapshot {
	if _, ok := b.(backend.Transition); ok {
		return snap // it reads the offers itself
	}
	var peers []subnet.Lease
	for i, lease := range snap.Peers {
		if !slices.ContainsFunc(lease.Stacks, hasOffers) {
			continue
		}
		if peers == nil {
			peers = slices.Clone(snap.Peers)
		}
		peers[i] = Way{Type: kind, Backend: b}.of(lease)
	}
	if peers != nil {
		snap.Peers = peers
	}
	return snap
}

// Claims returns a function like c.Claims, which also knows what a stack offers beside its own.
func Claims(c backend.Claimer) func(subnet.Stack) []string {
	if _, ok := c.(backend.Transition); ok {
		return c.Claims // it reads the offers itself
	}
	return Backend{ways: []Way{{Backend: c}}}.Claims
}

// of returns a lease with what it offers of one way, and the lease as it is if that is nothing.
func (w Way) of(lease subnet.Lease) subnet.Lease {
	one, only := lease, Backend{ways: []Way{w}}
	one.Stacks = slices.Clone(lease.Stacks)
	for i, s := range lease.Stacks {
		if list := only.known(lease, s); len(list) > 0 && list[0].Until == 0 {
			one.Backend, one.Stacks[i].Data = w.Type, list[0].Data
		}
	}
	return one
}
