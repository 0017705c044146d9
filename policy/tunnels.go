package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// tunnel is a node's address, and the one that its packets to pods come from.
type tunnel struct{ node, source netip.Addr }

// sortedTunnels returns those of leases, by the nodes' addresses. Where an earlier lease has a subnet's first address, packets
// from there are that one's node's.
func sortedTunnels(leases []subnet.Lease) (all []tunnel) {
	h := newHolders(leases)
	for i, l := range leases {
		for _, s := range l.Stacks {
			if s.Underlay.IsValid() && s.Subnet.IsValid() && h.first(s.Subnet.Addr()) == i {
				all = append(all, tunnel{s.Underlay, s.Subnet.Addr()})
			}
		}
	}
	slices.SortFunc(all, func(a, b tunnel) int { return cmp.Or(a.node.Compare(b.node), a.source.Compare(b.source)) })
	return all
}

// tunnels are all nodes'.
type tunnels struct{ byNode, bySource []tunnel }

func newTunnels(leases []subnet.Lease) tunnels {
	t := tunnels{byNode: sortedTunnels(leases)}
	t.bySource = slices.SortedFunc(slices.Values(t.byNode), func(a, b tunnel) int { return a.source.Compare(b.source) })
	return t
}

// through returns ranges with what the nodes' packets come from whose addresses are in them, and without what those of other
// nodes do: a node is in a range by its address, with every backend.
func (t tunnels) through(ranges []addrRange) []addrRange {
	var own, others []addrRange
	for _, r := range ranges {
		for _, one := range tunnelsIn(r, t.byNode, func(t tunnel) netip.Addr { return t.node }) {
			own = append(own, hostRange(one.source))
		}
		for _, one := range tunnelsIn(r, t.bySource, func(t tunnel) netip.Addr { return t.source }) {
			if !within(ranges, one.node) {
				others = append(others, hostRange(one.source))
			}
		}
	}
	return union(append(without(ranges, union(others)), own...))
}

// tunnelsIn returns those of some tunnels whose address is in a range. They are sorted by it.
func tunnelsIn(r addrRange, sorted []tunnel, addr func(tunnel) netip.Addr) []tunnel {
	first, _ := slices.BinarySearchFunc(sorted, r.first, func(t tunnel, a netip.Addr) int { return addr(t).Compare(a) })
	last := first
	for last < len(sorted) && !r.last.Less(addr(sorted[last])) {
		last++
	}
	return sorted[first:last]
}

// FollowLeases follows that leases changed, which are as Snapshot has them. It is not ok if a policy means something else
// now, or an address is another pod's: then a new Table is due.
func (t *Table) FollowLeases(now []subnet.Lease) (ok bool) {
	was, is := sortedTunnels(t.leases), sortedTunnels(now)
	moved := slices.Concat(lacking(is, was), lacking(was, is))
	before := t.owners
	t.leases, t.owners.holders = now, newHolders(now)
	for addr := range t.owners.claims {
		if t.owners.of(addr) != before.of(addr) {
			return false
		}
	}
	return !slices.ContainsFunc(t.rules.blocks, func(ranges []addrRange) bool {
		return slices.ContainsFunc(moved, func(m tunnel) bool { return within(ranges, m.node) != within(ranges, m.source) })
	})
}

// lacking returns those of some tunnels that are not among others.
func lacking(some, others []tunnel) (all []tunnel) {
	there := make(map[tunnel]bool, len(others))
	for _, o := range others {
		there[o] = true
	}
	return slices.DeleteFunc(slices.Clone(some), func(t tunnel) bool { return there[t] })
}

// contain reports whether an address is in one of the ranges.
func contain(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
