package policy

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Follow follows pods that changed, and ports. It returns the plan from the state before to the state after. It is not ok if
// pods of this node need other chains now, the node has other subnets, or policies may have come to a limit of the budget: then a
// new Table is due, State is still the one before, and the Table of no other use.
func (t *Table) Follow(site Site, changes []PodChange) (plan netstate.Plan, ok bool) {
	if !slices.Equal(site.Subnets, t.site.Subnets) {
		return nil, false
	}
	now := t.ports
	if !slices.Equal(site.Ports, now.list) {
		now = newPorts(site.Ports)
	}
	addrs, names := t.touched(now, changes)
	before := t.of(addrs, names)
	for _, c := range changes {
		for _, addr := range c.addrs() {
			old := t.owners.of(addr)
			t.owners.move(addr, c.Was, c.Now)
			added := t.use(addr, t.owners.of(addr), 1)
			if t.use(addr, old, -1) || added {
				return nil, false
			}
		}
	}
	t.ports = now
	plan = netstate.Diff(t.of(addrs, names), before)
	if !t.spare(plan) {
		return nil, false
	}
	for _, c := range plan {
		if delete(t.state, c.Key()); c.Want != nil {
			t.state.Add(c.Want)
		}
	}
	return plan, true
}

// touched returns the addresses whose pods may change, and the names of the ports that change or have one of them.
func (t *Table) touched(now *ports, changes []PodChange) (addrs map[netip.Addr]bool, names map[string]bool) {
	addrs, names = map[netip.Addr]bool{}, map[string]bool{}
	for _, name := range t.ports.changed(now) {
		names[name] = true
	}
	for _, c := range changes {
		for _, addr := range c.addrs() {
			addrs[addr] = true
			for _, name := range t.ports.byAddr[addr] {
				names[name] = true
			}
		}
	}
	return addrs, names
}

// of returns what addresses and ports are in now.
func (t *Table) of(addrs map[netip.Addr]bool, ports map[string]bool) netstate.State {
	state := netstate.State{}
	for addr := range addrs {
		state.Add(t.elements(addr, t.owners.of(addr))...)
	}
	for name := range ports {
		state.Add(t.portElements(name)...)
	}
	t.addCopies(state)
	return state
}

// addrs returns the addresses of the pod before and after.
func (c PodChange) addrs() (all []netip.Addr) {
	if c.Was != nil {
		all = append(all, c.Was.Addrs...)
	}
	if c.Now != nil {
		all = append(all, c.Now.Addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// use notes the chains that an address of this node needs, or with -1 that it does not need them any more. It reports
// whether that changed which chains there are.
func (t *Table) use(addr netip.Addr, p *Pod, n int) (changed bool) {
	if !t.local(p) {
		return false
	}
	family := netstate.FamilyOf(addr)
	for _, j := range t.judgements(Endpoint{Addr: addr, Pod: p}) {
		if j.policies.None() {
			continue
		}
		k := chainKey(family, j.direction, j.policies)
		if n > 0 && t.uses[k] == 0 {
			t.chains[k] = newChain(family, j.direction, j.policies, t.site.Audit)
			changed = true
		}
		if t.uses[k] += n; t.uses[k] == 0 {
			delete(t.chains, k)
			changed = true
		}
	}
	return changed
}
