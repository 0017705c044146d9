package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// tunnel is a node's address, and the one that its packets to pods come from.
type tunnel struct{ node, source netip.Addr }

// sortedTunnels returns those of leases, by the nodes' addresses.
func sortedTunnels(leases []subnet.Lease) (all []tunnel) {
	for _, l := range leases {
		for _, s := range l.Stacks {
			if s.Underlay.IsValid() && s.Subnet.IsValid() {
				all = append(all, tunnel{s.Underlay, s.Subnet.Addr()})
			}
		}
	}
	slices.SortFunc(all, func(a, b tunnel) int { return cmp.Or(a.node.Compare(b.node), a.source.Compare(b.source)) })
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
	return !slices.ContainsFunc(t.rules.blocks, func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(moved, func(m tunnel) bool { return contain(ranges, m.node) && !contain(ranges, m.source) })
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
