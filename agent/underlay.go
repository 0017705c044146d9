package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// routeTo finds the interface towards an address, and the address that the kernel would send from.
type routeTo func(netip.Addr) (dev string, src netip.Addr, err error)

// pick chooses the underlays of the address families as flannel does: one interface that has an
// address of each, by the first rule that finds one. If no interface has all of them, each family
// gets its own.
//
// What was chosen before stays as long as its rule matches it. If an interface appears that matches
// an earlier rule, that one is chosen. But if the rule that chose matches nothing any more, later
// rules are not tried: a flapping interface is an error, and does not move the overlay to another
// network.
func (c Choice) pick(interfaces []netstate.Interface, families []netstate.Family, before backend.Node,
	route routeTo) ([]backend.Underlay, error) {
	if len(families) > 1 && c.given() {
		if chosen, err := c.onOne(interfaces, families, before, route); err == nil {
			return chosen, nil
		}
	}
	var all []backend.Underlay
	for _, f := range families {
		chosen, err := c.onOne(interfaces, []netstate.Family{f}, before, route)
		if err != nil {
			return nil, err
		}
		all = append(all, chosen...)
	}
	return all, nil
}

// onOne chooses one interface for all these families.
func (c Choice) onOne(interfaces []netstate.Interface, families []netstate.Family, before backend.Node,
	route routeTo) ([]backend.Underlay, error) {
	var tried []string
	rules := c.rules(interfaces, families, route)
	last, _ := before.Underlay(families[0])
	for k, r := range rules {
		if isWorse(rules, k, families, before) {
			break
		}
		i, addrs, ok := r.find(interfaces, families, before)
		switch {
		case ok && i.Up:
			return c.underlays(i, addrs, r.text), nil
		case ok && (last.By == "" || last.By == r.text):
			return nil, fmt.Errorf("the interface %s, which matches %s, is down", i.Name, r.text)
		case r.err != nil:
			tried = append(tried, fmt.Sprintf("%s (%v)", r.text, r.err))
		default:
			tried = append(tried, r.text)
		}
	}
	stays := ""
	if last.By != "" {
		stays = fmt.Sprintf(" any more, %s with %s stays", last.Dev, last.Local)
	}
	return nil, fmt.Errorf("no interface with an %s address matches %s%s; there are: %s",
		familyNames(families), strings.Join(slices.Compact(tried), " or "), stays, describe(interfaces))
}

// isWorse reports whether rule k comes after the one that chose the underlay of one of the families before.
func isWorse(rules []rule, k int, families []netstate.Family, before backend.Node) bool {
	for _, f := range families {
		if u, ok := before.Underlay(f); ok && u.By != "" && u.By != rules[k].text &&
			slices.ContainsFunc(rules[:k], func(r rule) bool { return r.text == u.By }) {
			return true
		}
	}
	return false
}

// find returns the first interface on which r matches an address of each family, and these
// addresses. The interface of before is tried first.
func (r rule) find(interfaces []netstate.Interface, families []netstate.Family,
	before backend.Node) (netstate.Interface, []netip.Addr, bool) {
	last, _ := before.Underlay(families[0])
	order := slices.Clone(interfaces)
	slices.SortStableFunc(order, func(a, b netstate.Interface) int {
		return cmp.Or(first(a.Name == last.Dev, b.Name == last.Dev), first(a.Has(r.best), b.Has(r.best)))
	})
	for _, i := range order {
		if i.Owned || r.err != nil {
			continue
		}
		var found []netip.Addr
		for _, f := range families {
			was, _ := before.Underlay(f)
			if a, ok := r.addr(i, f, was); ok {
				found = append(found, a)
			}
		}
		if len(found) == len(families) {
			return i, found, true
		}
	}
	return netstate.Interface{}, nil, false
}

// addr returns the address of one family that r matches on i: the one of before, else the rule's
// own, else the first.
func (r rule) addr(i netstate.Interface, f netstate.Family, before backend.Underlay) (best netip.Addr, ok bool) {
	rank := func(a netip.Addr) int {
		switch a {
		case before.Local:
			return 2
		case r.best:
			return 1
		}
		return 0
	}
	for _, p := range i.Addrs {
		a := p.Addr()
		usable := netstate.FamilyOf(a) == f && (!a.IsLoopback() || a == r.best) && r.matches(i, a)
		if usable && (!ok || rank(a) > rank(best)) {
			best, ok = a, true
		}
	}
	return best, ok
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (c Choice) underlays(i netstate.Interface, addrs []netip.Addr, by string) []backend.Underlay {
	var list []backend.Underlay
	for _, a := range addrs {
		u := backend.Underlay{
			Dev: i.Name, Local: a, Public: a, MTU: i.MTU, OnLink: i.OnLink, AcceptRA: i.AcceptRA, By: by}
		if p := c.public(netstate.FamilyOf(a)); p.IsValid() {
			u.Public = p
		}
		list = append(list, u)
	}
	return list
}

// public returns the address that the flags or the cluster say to advertise, invalid if none.
func (c Choice) public(f netstate.Family) netip.Addr {
	k := slices.IndexFunc(c.Public, func(a netip.Addr) bool { return netstate.FamilyOf(a) == f })
	if k < 0 {
		return netip.Addr{}
	}
	return c.Public[k]
}

func familyNames(families []netstate.Family) string {
	var names []string
	for _, f := range families {
		names = append(names, f.String())
	}
	return strings.Join(names, " and an ")
}

// describe lists the interfaces for an error: "eth0 (10.0.2.15/24), eth1 (down)".
func describe(interfaces []netstate.Interface) string {
	var list []string
	for _, i := range interfaces {
		var facts []string
		for _, p := range i.Addrs {
			facts = append(facts, p.String())
		}
		if !i.Up {
			facts = append(facts, "down")
		}
		if i.Owned {
			continue
		}
		list = append(list, fmt.Sprintf("%s (%s)", i.Name, strings.Join(facts, " ")))
	}
	return strings.Join(list, ", ")
}
