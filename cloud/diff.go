package cloud

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// Want returns the routes that a node's lease asks for: one in each table to each of its subnets.
func Want(self Self, lease subnet.Lease) (want []Route) {
	tables := self.Tables
	if len(tables) == 0 {
		tables = []string{""}
	}
	for _, t := range tables {
		for _, s := range lease.Stacks {
			want = append(want, Route{Table: t, Dst: s.Subnet.Masked(), Target: self.Target})
		}
	}
	return want
}

// Diff returns what has to change for the wanted routes of this node. Deletes come last, and are of other routes to its own
// subnets, where a table may have several to one prefix, and of routes to this node that look like a lease of the pools: an
// earlier one of its own. All other routes are somebody else's.
func Diff(want, have []Route, self Self, pools []subnet.Pool) (changes []Change) {
	for _, w := range want {
		changes = append(changes, diffOne(w, have)...)
	}
	for _, h := range have {
		wanted := slices.ContainsFunc(want, func(w Route) bool { return w.Table == h.Table && w.Dst == h.Dst })
		kept := len(self.Tables) == 0 || slices.Contains(self.Tables, h.Table)
		if h.Target == self.Target && self.Target != "" && kept && !wanted && isLease(h.Dst, pools) {
			changes = append(changes, Change{Op: Delete, Route: h})
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Op/Delete, b.Op/Delete), cmp.Compare(a.Route.String(), b.Route.String()))
	})
	return changes
}

// diffOne returns what has to change for one route. Packets are spread over all routes to a prefix, so a right one does not
// make up for a wrong one; several right ones do no harm.
func diffOne(w Route, have []Route) (changes []Change) {
	var wrong []Route
	right := false
	for _, h := range have {
		switch {
		case h.Table != w.Table || h.Dst != w.Dst:
		case h.Target != w.Target || h.State == Blackhole:
			wrong = append(wrong, h)
		default:
			right = true
		}
	}
	switch {
	case right:
	case len(wrong) == 0:
		return []Change{{Op: Create, Route: w}}
	default:
		w.Name, w.Mark = wrong[0].Name, wrong[0].Mark
		changes = append(changes, Change{Op: Replace, Route: w, Old: wrong[0]})
		wrong = wrong[1:]
	}
	for _, h := range wrong {
		changes = append(changes, Change{Op: Delete, Route: h})
	}
	return changes
}

// isLease reports whether a prefix is one that a pool leases to a node.
func isLease(p netip.Prefix, pools []subnet.Pool) bool {
	return slices.ContainsFunc(pools, func(pool subnet.Pool) bool { return pool.Fits(p) })
}

// Dead returns the routes that lead nowhere, look like a lease of the pools, and are leased by nobody.
func Dead(have []Route, snap subnet.Snapshot, pools []subnet.Pool) (dead []Route) {
	leased := map[netip.Prefix]bool{}
	for _, l := range append(slices.Clone(snap.Peers), snap.Local) {
		for _, s := range l.Stacks {
			leased[s.Subnet.Masked()] = true
		}
	}
	for _, h := range have {
		if h.State == Blackhole && isLease(h.Dst, pools) && !leased[h.Dst] {
			dead = append(dead, h)
		}
	}
	return dead
}
