package policy

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// tunnel is a node's address, and the one that its packets to pods come from.
type tunnel struct{ node, source netip.Addr }

// sortedTunnels returns them by the nodes' addresses.
func sortedTunnels(sources map[netip.Addr]netip.Addr) (all []tunnel) {
	for node, source := range sources {
		all = append(all, tunnel{node, source})
	}
	slices.SortFunc(all, func(a, b tunnel) int { return a.node.Compare(b.node) })
	return all
}

// throughTunnels adds to disjoint ranges what the nodes' packets come from whose addresses are in them.
func throughTunnels(ranges []netip.Prefix, tunnels []tunnel) []netip.Prefix {
	all := slices.Clip(ranges)
	for _, r := range ranges {
		first, _ := slices.BinarySearchFunc(tunnels, r.Addr(), func(t tunnel, a netip.Addr) int { return t.node.Compare(a) })
		for _, t := range tunnels[first:] {
			if !r.Contains(t.node) {
				break
			}
			all = append(all, netstate.Host(t.source))
		}
	}
	if len(all) == len(ranges) {
		return ranges
	}
	return disjoint(all)
}

// FollowTunnels follows that tunnels changed, which are as Snapshot has them. It is not ok if a policy means something else
// now: then a new Table is due.
func (t *Table) FollowTunnels(now map[netip.Addr]netip.Addr) (ok bool) {
	moved := slices.Concat(lacking(now, t.tunnels), lacking(t.tunnels, now))
	t.tunnels = now
	return !slices.ContainsFunc(t.rules.blocks, func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(moved, func(m tunnel) bool { return contain(ranges, m.node) && !contain(ranges, m.source) })
	})
}

// lacking returns those of some tunnels that are not among others.
func lacking(some, others map[netip.Addr]netip.Addr) (all []tunnel) {
	for node, source := range some {
		if others[node] != source {
			all = append(all, tunnel{node, source})
		}
	}
	return all
}

// contain reports whether an address is in one of the ranges.
func contain(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
