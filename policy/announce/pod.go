package announce

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/policy"
)

// pod is one of this node.
type pod struct {
	reported, told *policy.Pod  // as the other source has it, and as it was taken
	announced      []netip.Addr // by its last announcement, without those that it has given back
	gone           []netip.Addr // that it has given back, and the other source may still report
}

// mostGone bounds the addresses that a pod has given back: it gives some back each time it gets a new sandbox.
const mostGone = 16

// add gives the pod the addresses that it has now. What it had before is gone, and so is what is still reported.
func (p *pod) add(addrs []netip.Addr) {
	for _, old := range [][]netip.Addr{p.reported.Addrs, p.announced} {
		p.remove(without(old, addrs))
	}
	p.announced, p.gone = addrs, without(p.gone, addrs)
}

// remove takes addresses from the pod.
func (p *pod) remove(addrs []netip.Addr) {
	p.announced = without(p.announced, addrs)
	p.gone = append(without(p.gone, addrs), addrs...)
	p.gone = p.gone[max(0, len(p.gone)-mostGone):]
}

// addrs returns the addresses that the pod has.
func (p *pod) addrs() []netip.Addr {
	addrs := without(p.reported.Addrs, p.gone)
	if len(without(addrs, p.announced)) == 0 {
		return p.announced
	}
	return addrs
}

// tell returns the pod as it is to be told, which is what was told if that is the same.
func (p *pod) tell() *policy.Pod {
	now := *p.reported
	if now.Addrs = p.addrs(); p.told == nil || !p.told.Equal(&now) {
		p.told = &now
	}
	return p.told
}

// appendChange adds a change, if it is one.
func appendChange(all []policy.PodChange, was, now *policy.Pod) []policy.PodChange {
	if was == now {
		return all
	}
	return append(all, policy.PodChange{Was: was, Now: now})
}

// without returns the addresses that are not among others.
func without(addrs, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// overlap reports whether two lists have an address in common.
func overlap(addrs, others []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(others, a) })
}
