package ipam

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// Range is a run of addresses of one subnet, both ends included.
type Range struct {
	Subnet               netip.Prefix // masked
	First, Last, Gateway netip.Addr
}

// NewRange replaces invalid addresses by host-local's defaults: the first address and the gateway are the
// subnet's .1, the last one is the one before an IPv4 subnet's broadcast address or the very last of an IPv6
// subnet. A range that would begin before these or end behind them does not.
func NewRange(subnet netip.Prefix, first, last, gateway netip.Addr) (Range, error) {
	if !subnet.IsValid() || subnet.Bits() > subnet.Addr().BitLen()-2 {
		return Range{}, fmt.Errorf("subnet %s: want a prefix with room for two pods, such as 10.244.1.0/24", subnet)
	}
	r := Range{subnet.Masked(), first, last, gateway}
	if !first.IsValid() || first == r.Subnet.Addr() {
		r.First = r.Subnet.Addr().Next()
	}
	if end := lastAddr(r.Subnet); !last.IsValid() || r.Subnet.Contains(last) && end.Less(last) {
		r.Last = end
	}
	if r.Subnet.Contains(first) && lastAddr(r.Subnet).Less(first) {
		return Range{}, fmt.Errorf("range %s to %s: %s is the broadcast address of %s: want addresses before it",
			first, last, first, r.Subnet)
	}
	if !gateway.IsValid() {
		r.Gateway = r.Subnet.Addr().Next()
	}
	if !r.Subnet.Contains(r.First) || !r.Subnet.Contains(r.Last) || r.Last.Less(r.First) {
		return Range{}, fmt.Errorf("range %s to %s: want addresses of %s, the lower one first", r.First, r.Last, r.Subnet)
	}
	if r.Gateway.BitLen() != r.First.BitLen() {
		return Range{}, fmt.Errorf("gateway %s of %s: want an address of the same family", r.Gateway, r.Subnet)
	}
	return r, nil
}

// lastAddr returns the last address of a subnet that a pod can have.
func lastAddr(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := subnet.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	if netstate.FamilyOf(last) == netstate.IPv4 {
		return last.Prev()
	}
	return last
}

// WithLength returns a with the subnet's length, as a pod has it.
func (r Range) WithLength(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, r.Subnet.Bits()) }

// RangeSet is a list of ranges; a pod gets one address from all of them.
type RangeSet []Range

// CheckSets returns an error if ranges overlap, so that a pod would get two addresses of one subnet, or if a set has
// ranges of both families, so that a pod would get an address of either.
func CheckSets(sets []RangeSet) error {
	var before RangeSet
	for _, set := range sets {
		for _, r := range set {
			if netstate.FamilyOf(r.First) != netstate.FamilyOf(set[0].First) {
				return fmt.Errorf("ranges %s: want one family in a set, of which a pod gets one address", set)
			}
			for _, b := range before {
				if !r.Last.Less(b.First) && !b.Last.Less(r.First) {
					return fmt.Errorf("ranges %s overlap: want each address in one range", RangeSet{b, r})
				}
			}
			before = append(before, r)
		}
	}
	return nil
}

// find returns the index of the range that contains a, or -1.
func (s RangeSet) find(a netip.Addr) int {
	for i, r := range s {
		if !a.Less(r.First) && !r.Last.Less(a) { // every IPv4 address is less than every IPv6 address
			return i
		}
	}
	return -1
}

// offers reports whether a pod can have a from the set.
func (s RangeSet) offers(a netip.Addr) bool {
	i := s.find(a)
	return i >= 0 && a != s[i].Gateway
}

// size returns how many addresses pods can have of the set, at most math.MaxInt32.
func (s RangeSet) size() int {
	count := 0
	for _, r := range s {
		count += distance(r.First, r.Last) + 1
		if !r.Gateway.Less(r.First) && !r.Last.Less(r.Gateway) {
			count--
		}
	}
	return min(count, math.MaxInt32)
}

// distance returns by how much b is larger than a, at most math.MaxInt32.
func distance(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(y[8:]), binary.BigEndian.Uint64(x[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(y[:8]), binary.BigEndian.Uint64(x[:8]), borrow)
	if high > 0 || low > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(low)
}

// after yields every address that a pod can have once, the one after last first, then round: an address is
// not used again before all others were.
func (s RangeSet) after(last netip.Addr) iter.Seq2[Range, netip.Addr] {
	return func(yield func(Range, netip.Addr) bool) {
		i, start := 0, s[0].First
		if found := s.find(last); found >= 0 {
			i, start = s.next(found, last)
		}
		for a := start; ; {
			if a != s[i].Gateway && !yield(s[i], a) {
				return
			}
			if i, a = s.next(i, a); a == start {
				return
			}
		}
	}
}

// next returns the address that follows a of range i, and the index of its range.
func (s RangeSet) next(i int, a netip.Addr) (int, netip.Addr) {
	if a != s[i].Last {
		return i, a.Next()
	}
	i = (i + 1) % len(s)
	return i, s[i].First
}

func (s RangeSet) String() string {
	var texts []string
	for _, r := range s {
		texts = append(texts, fmt.Sprintf("%s (%s to %s)", r.Subnet, r.First, r.Last))
	}
	return strings.Join(texts, " and ")
}

// SetsString returns a text that names all ranges.
func SetsString(sets []RangeSet) string {
	var texts []string
	for _, s := range sets {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, ", ")
}
