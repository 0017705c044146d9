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
// What was chosen before stays as long as its rule matches it, and is chosen again when it is back. If an interface appears that matches
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
		r.last = c.Last
		i, addrs, ok := r.find(interfaces, families, before)
		switch {
		case ok && i.Up:
			return c.underlays(i, addrs, r, before, besideOf(i, interfaces)), nil
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
		stays = fmt.Sprintf(" any more, %s with %s stays%s", last.Dev, last.Local, unfitOn(interfaces, last))
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

// addr returns the address of one family that r matches on i, the one of the highest rank.
func (r rule) addr(i netstate.Interface, f netstate.Family, before backend.Underlay) (best netip.Addr, ok bool) {
	for most, k := unfit, 0; k < len(i.Addrs); k++ {
		a := i.Addrs[k].Addr()
		usable := netstate.FamilyOf(a) == f && (!a.IsLoopback() || a == r.best) && r.matches(i, a)
		if rank := r.rank(i, a, before); usable && rank > most {
			best, ok, most = a, true, rank
		}
	}
	return best, ok
}

// The ranks of an interface's addresses. What was chosen first comes first whenever it is there. What the interface may
// not have for good is chosen if there is nothing else, and never in place of an address that is away: then that one
// stays until it is back.
const (
	unfit = iota
	passing
	passingNow // it is chosen already
	lasting
	named // the rule's own
	now
	atFirst
	atLast // of an earlier run
)

func (r rule) rank(i netstate.Interface, a netip.Addr, before backend.Underlay) int {
	here := i.Name == before.Dev
	switch {
	case slices.Contains(r.last, a):
		return atLast
	case here && a == before.First:
		return atFirst
	case here && a == before.Local && i.Keeps(a):
		return now
	case a == r.best:
		return named
	case i.Keeps(a):
		return lasting
	case here && a == before.Local:
		return passingNow
	case here && !before.Passing && !i.Has(before.Local):
		return unfit
	}
	return passing
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

// besideOf returns the links of the other interfaces that share an L2 segment with hosts: no tunnels of others.
func besideOf(chosen netstate.Interface, interfaces []netstate.Interface) (links []backend.Link) {
	for _, i := range interfaces {
		if i.Name != chosen.Name && i.Up && i.Running && i.Ethernet && !i.Owned && i.VRF == chosen.VRF && len(i.OnLink) > 0 {
			links = append(links, backend.Link{Dev: i.Name, MTU: i.MTU, OnLink: i.OnLink})
		}
	}
	slices.SortFunc(links, func(a, b backend.Link) int { return cmp.Compare(a.Dev, b.Dev) })
	return links
}

func (c Choice) underlays(i netstate.Interface, addrs []netip.Addr, by rule, before backend.Node, beside []backend.Link) []backend.Underlay {
	var list []backend.Underlay
	for _, a := range addrs {
		u := backend.Underlay{
			Dev: i.Name, Local: a, First: a, Passing: !i.Keeps(a), Public: a, MTU: i.MTU, OnLink: i.OnLink,
			AcceptRA: i.AcceptRA, By: by.text, Beside: beside}
		was, _ := before.Underlay(netstate.FamilyOf(a))
		if was.Dev == i.Name && was.First.IsValid() && by.matches(i, was.First) {
			u.First = was.First
		}
		if p := c.public(netstate.FamilyOf(a)); p.IsValid() {
			u.Public = p
		}
		list = append(list, u)
	}
	return list
}

// unfitOn says which address of an underlay's interface does not replace the one that is away, empty if there is none.
func unfitOn(interfaces []netstate.Interface, away backend.Underlay) string {
	for _, i := range interfaces {
		for _, p := range i.Addrs {
			a := p.Addr()
			if i.Name == away.Dev && netstate.FamilyOf(a) == away.Family() && !i.Keeps(a) && !away.Passing {
				return fmt.Sprintf(", and %s does not take its place: it is deprecated, secondary or alone in its subnet", a)
			}
		}
	}
	return ""
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
