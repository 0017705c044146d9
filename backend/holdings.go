package backend

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// holdings are the subnets that are held, by whom. The work for each subnet depends on how many lengths the
// subnets of a snapshot have, which is one in nearly every cluster, and not on how many subnets there are.
type holdings struct {
	lengths map[netstate.Family][]int     // of the snapshot's subnets
	nodes   map[netip.Prefix]string       // the holders of subnets
	inside  map[netip.Prefix]netip.Prefix // for what is wider than a held subnet and has one of the lengths: the first one in it
}

func newHoldings(snap subnet.Snapshot) holdings {
	h := holdings{
		lengths: map[netstate.Family][]int{},
		nodes:   make(map[netip.Prefix]string, len(snap.Peers)+1),
		inside:  map[netip.Prefix]netip.Prefix{},
	}
	note := func(lease subnet.Lease) {
		for _, s := range lease.Stacks {
			f, bits := netstate.FamilyOf(s.Subnet.Addr()), s.Subnet.Bits()
			if s.Subnet.IsValid() && !slices.Contains(h.lengths[f], bits) {
				h.lengths[f] = append(h.lengths[f], bits)
			}
		}
	}
	note(snap.Local)
	for _, lease := range snap.Peers {
		note(lease)
	}
	return h
}

// add makes node the holder of p, which overlaps nothing that is held.
func (h holdings) add(node string, p netip.Prefix) {
	h.nodes[p] = node
	for _, bits := range h.lengths[netstate.FamilyOf(p.Addr())] {
		if bits >= p.Bits() {
			continue
		}
		wider := netip.PrefixFrom(p.Addr(), bits).Masked()
		if _, ok := h.inside[wider]; !ok {
			h.inside[wider] = p
		}
	}
}

// overlap finds a held subnet that shares addresses with p, and its holder.
func (h holdings) overlap(p netip.Prefix) (netip.Prefix, string, bool) {
	for _, bits := range h.lengths[netstate.FamilyOf(p.Addr())] {
		if bits > p.Bits() {
			continue
		}
		wider := netip.PrefixFrom(p.Addr(), bits).Masked()
		if holder, ok := h.nodes[wider]; ok {
			return wider, holder, true
		}
	}
	held, ok := h.inside[p]
	return held, h.nodes[held], ok
}
