package policy

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// addrRange is the addresses of one family from the first to the last.
type addrRange struct{ first, last netip.Addr }

func rangeOf(p netip.Prefix) addrRange { return addrRange{p.Masked().Addr(), netstate.LastAddr(p)} }

func hostRange(a netip.Addr) addrRange { return addrRange{a, a} }

// String is the same for the same range.
func (r addrRange) String() string { return r.first.String() + "-" + r.last.String() }

// union returns what is in any of the ranges, as disjoint ranges in order that do not touch.
func union(all []addrRange) (merged []addrRange) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b addrRange) int { return a.first.Compare(b.first) }) // IPv4 comes first
	for _, r := range all {
		n := len(merged)
		switch {
		case n == 0 || merged[n-1].last.Less(r.first) && merged[n-1].last.Next() != r.first:
			merged = append(merged, r)
		case merged[n-1].last.Less(r.last):
			merged[n-1].last = r.last
		}
	}
	return merged
}

// without returns what is in some ranges and in none of others. Both are as union makes them, and so is the result.
func without(all, others []addrRange) (left []addrRange) {
	for _, r := range all {
		at, _ := slices.BinarySearchFunc(others, r.first, func(o addrRange, a netip.Addr) int { return o.last.Compare(a) })
		empty := false
		for _, o := range others[at:] {
			if r.last.Less(o.first) {
				break
			}
			if r.first.Less(o.first) {
				left = append(left, addrRange{r.first, o.first.Prev()})
			}
			if empty = !o.last.Less(r.last); empty {
				break
			}
			r.first = o.last.Next()
		}
		if !empty {
			left = append(left, r)
		}
	}
	return left
}

// within reports whether an address is in one of the ranges, which are as union makes them.
func within(all []addrRange, a netip.Addr) bool {
	at, _ := slices.BinarySearchFunc(all, a, func(r addrRange, a netip.Addr) int { return r.last.Compare(a) })
	return at < len(all) && !a.Less(all[at].first)
}
