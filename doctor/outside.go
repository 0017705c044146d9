package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Gateways returns the routers of the default routes that are in use, of each family one that pods may send to.
func (f Facts) Gateways() (all []netip.Addr) {
	for _, i := range f.Interfaces {
		for _, family := range i.Default {
			at := slices.IndexFunc(i.Gateways, func(a netip.Addr) bool {
				return netstate.FamilyOf(a) == family && !a.IsLinkLocalUnicast()
			})
			if at >= 0 {
				all = append(all, i.Gateways[at])
			}
		}
	}
	return all
}

// Masquerades reports whether this node is to give a pod's packets to an address its own address.
func (f Facts) Masquerades(src, dst netip.Addr) bool {
	matches := func(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }
	excludes := func(p netip.Prefix, a netip.Addr) bool { return p.IsValid() && p.Contains(a) }
	for _, o := range f.Want {
		c, ok := o.(netstate.Chain)
		if !ok || c.Role != netstate.Postrouting || c.Family != netstate.FamilyOf(src) {
			continue
		}
		for _, r := range c.Rules {
			if r.Verdict != netstate.None && r.Mark == 0 && !r.Local && matches(r.Src, src) && matches(r.Dst, dst) &&
				!excludes(r.NotSrc, src) && !excludes(r.NotDst, dst) {
				return r.Verdict == netstate.Masquerade || r.Verdict == netstate.MasqueradeRandom
			}
		}
	}
	return false
}

// checkOutside is about the addresses outside of the cluster that were asked about.
func (e *exam) checkOutside() {
	for _, p := range e.Out {
		if p.Hop.Error != "" {
			e.find(outsideUnrouted, p.To.String(), "a route", p.Hop.Error, "")
		}
	}
}

// FollowOut traces a packet from a pod to an address outside of the cluster through the pod's node, and the reply.
func FollowOut(f Facts, flow Flow) Trace {
	t := newTrace(flow)
	t.Outside = true
	t.unread(f)
	t.join(&t.Forward, visit{f, flow}.walk(outPlaces))
	t.join(&t.Back, visit{f, flow.reverse()}.walk(backPlaces))
	return t
}

// outPlaces are those of a pod's node for packets to the outside, and backPlaces those for what comes back.
var (
	outPlaces = slices.Concat(named(leavePlaces, "lease", "pod's interface", "pod's port", "bridge", "prerouting rules", "forwarding"),
		[]place{{name: "route", kinds: []kind{outsideUnrouted}, entry: visit.outEntry}},
		named(leavePlaces, "forward rules", "network policies", "postrouting rules"),
		[]place{{name: "masquerading", kinds: []kind{masqueradeMissing}, entry: visit.maskEntry},
			{name: "neighbour", entry: func(v visit) string { return v.out().Neighbour.String() }}})
	backPlaces = named(arrivePlaces, "reverse path check", "prerouting rules", "forwarding", "forward rules", "bridge", "own route",
		"pod's neighbour entry", "pod's interface", "pod's port")
)

// named returns the places of these names.
func named(all []place, names ...string) []place {
	return slices.DeleteFunc(slices.Clone(all), func(p place) bool { return !slices.Contains(names, p.name) })
}

// out returns the kernel's path to the end that is outside of the cluster.
func (v visit) out() OutPath {
	for _, p := range v.Out {
		if p.To == v.flow.Dst || p.To == v.flow.Src {
			return p
		}
	}
	return OutPath{}
}

func (v visit) outEntry() string { return fmt.Sprintf("%s %s", v.out().To, v.out().Hop) }

func (v visit) maskEntry() string {
	if !v.Masquerades(v.flow.Src, v.flow.Dst) {
		return "none: packets keep the pod's address"
	}
	return "packets leave with an address of " + v.out().Hop.Dev
}
