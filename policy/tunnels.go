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
	all := ranges
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
