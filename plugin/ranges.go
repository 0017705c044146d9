package plugin

import (
	"fmt"
	"iter"
	"net/netip"
)

// addrRange is a run of addresses of one subnet, both ends included, as host-local has it.
type addrRange struct {
	subnet               netip.Prefix // masked
	first, last, gateway netip.Addr
}

// rangeSet is ranges of which a pod gets one address.
type rangeSet []addrRange

// newRange fills in what is not valid as host-local does: the first address and the gateway are the subnet's
// .1, the last one is the one before an IPv4 subnet's broadcast or the very last of an IPv6 subnet.
func newRange(subnet netip.Prefix, first, last, gateway netip.Addr) (addrRange, error) {
	if !subnet.IsValid() || subnet.Bits() > subnet.Addr().BitLen()-2 {
		return addrRange{}, fmt.Errorf("subnet %s: want a prefix with room for two pods, such as 10.244.1.0/24", subnet)
	}
	r := addrRange{subnet.Masked(), first, last, gateway}
	if !first.IsValid() {
		r.first = r.subnet.Addr().Next()
	}
	if !last.IsValid() {
		r.last = lastAddr(r.subnet)
	}
	if !gateway.IsValid() {
		r.gateway = r.subnet.Addr().Next()
	}
	if !r.subnet.Contains(r.first) || !r.subnet.Contains(r.last) || r.last.Less(r.first) {
		return addrRange{}, fmt.Errorf("range %s to %s: want addresses of %s, the lower one first", r.first, r.last, r.subnet)
	}
	if r.gateway.Is4() != r.first.Is4() {
		return addrRange{}, fmt.Errorf("gateway %s of %s: want an address of the same family", r.gateway, r.subnet)
	}
	return r, nil
}

// lastAddr is the last address of a subnet that a pod can have.
func lastAddr(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := subnet.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

func (r addrRange) contains(a netip.Addr) bool { return !a.Less(r.first) && !r.last.Less(a) }

// prefix is a with the subnet's length, as a pod has it.
func (r addrRange) prefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, r.subnet.Bits()) }

// find is the range of a, or -1.
func (s rangeSet) find(a netip.Addr) int {
	for i, r := range s {
		if a.IsValid() && a.Is4() == r.first.Is4() && r.contains(a) {
			return i
		}
	}
	return -1
}

// next calls f with every address that a pod can have, beginning after last and going round, until f says
// stop. Round robin, so that an address is not used again before all others were.
func (s rangeSet) next(last netip.Addr, f func(r addrRange, a netip.Addr) (stop bool)) {
	i, start := 0, s[0].first
	if found := s.find(last); found >= 0 {
		i, start = s.after(found, last)
	}
	for a := start; ; {
		if a != s[i].gateway && f(s[i], a) {
			return
		}
		if i, a = s.after(i, a); a == start {
			return
		}
	}
}

// after is the address that follows a of range i, and its range.
func (s rangeSet) after(i int, a netip.Addr) (int, netip.Addr) {
	if a != s[i].last {
		return i, a.Next()
	}
	i = (i + 1) % len(s)
	return i, s[i].first
}

// candidates are the addresses to try: the wanted one if it is valid, else all, beginning after last.
func (s rangeSet) candidates(last, wanted netip.Addr) iter.Seq2[addrRange, netip.Addr] {
	return func(yield func(addrRange, netip.Addr) bool) {
		if wanted.IsValid() {
			yield(s[s.find(wanted)], wanted)
			return
		}
		s.next(last, func(r addrRange, a netip.Addr) bool { return !yield(r, a) })
	}
}

// offers says whether a pod can have a from the set.
func (s rangeSet) offers(a netip.Addr) bool {
	i := s.find(a)
	return i >= 0 && a != s[i].gateway
}
