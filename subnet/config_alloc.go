package subnet

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Allocate fills in the subnets of want, for a Store that assigns them itself: want's own ones if the networks have them
// and they are free, otherwise free ones of the pools. The start of the search depends on the node only, so that nodes
// which start together do not race for the same subnet, and one that lost its state tends to get its old subnet.
func Allocate(pools []Pool, want Lease, used []netip.Prefix) (Lease, error) {
	if err := Match(pools, want); err != nil {
		return Lease{}, err
	}
	got := want
	got.Stacks = nil
	for i, s := range want.Stacks {
		p := pools[i]
		if !p.Keeps(s.Subnet) || overlaps(s.Subnet, used) {
			var ok bool
			if s.Subnet, ok = p.Free(start(want.Node, s.Underlay), used); !ok {
				return Lease{}, fmt.Errorf("all %d subnets of %s are in use: remove stale leases or use a larger network",
					p.Count(), p.Network)
			}
		}
		got.Stacks = append(got.Stacks, s)
	}
	return got, nil
}

// Match checks that want has the same address families as the pools, in the same order.
func Match(pools []Pool, want Lease) error {
	for i, p := range pools {
		if i >= len(want.Stacks) || want.Stacks[i].Family() != p.Family() {
			return fmt.Errorf("the lease of node %q has no address for network %s: want one per enabled family, IPv4 first",
				want.Node, p.Network)
		}
	}
	if len(want.Stacks) > len(pools) {
		return fmt.Errorf("the lease of node %q has %d addresses: want %d, one per enabled family",
			want.Node, len(want.Stacks), len(pools))
	}
	return nil
}

func overlaps(s netip.Prefix, used []netip.Prefix) bool {
	for _, u := range used {
		if u.Overlaps(s) {
			return true
		}
	}
	return false
}

func start(node string, a netip.Addr) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	h.Write(a.AsSlice())
	return h.Sum64()
}
