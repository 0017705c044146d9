package agent

import (
	"net/netip"
	"regexp"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Choice says how to choose the interface between the nodes. If any of Names, Patterns and Reach is
// set, these alone decide, in this order, each only if the ones before it find nothing. Otherwise
// it is the interface with the address in Public, then the one with the node's own address, then
// the one with the default route.
type Choice struct {
	Names    []string         // --iface: interface names or addresses
	Patterns []*regexp.Regexp // --iface-regex: match an interface's address or its name
	Reach    netip.Addr       // --iface-can-reach: the interface that the route to this address uses
	Public   []netip.Addr     // --public-ip, --public-ipv6 or the node's annotation: what to advertise
	NodeIPs  []netip.Addr     // the node's InternalIPs
	Last     []netip.Addr     // what this node advertised in an earlier run
	// Settled: if no interface has the node's own address by now, an address translator has it, and
	// waiting is pointless.
	Settled bool
}

// rule is one way to find an interface.
type rule struct {
	text    string // as an error shows it
	matches func(netstate.Interface, netip.Addr) bool
	best    netip.Addr   // of several addresses that match, this one; invalid: the first
	last    []netip.Addr // what this node advertised in an earlier run
	err     error        // it cannot be tried
}

// given reports whether flags name the interface.
func (c Choice) given() bool {
	return len(c.Names)+len(c.Patterns) > 0 || c.Reach.IsValid() || len(c.Public) > 0
}

// rules returns the rules for these families, in order.
func (c Choice) rules(interfaces []netstate.Interface, families []netstate.Family, route routeTo) []rule {
	var list []rule
	if len(c.Names)+len(c.Patterns) > 0 || c.Reach.IsValid() {
		for _, name := range c.Names {
			list = append(list, c.named("--iface "+name, name, families)...)
		}
		for _, p := range c.Patterns {
			list = append(list, matching(p, interfaces, families)...)
		}
		if c.Reach.IsValid() {
			list = append(list, reaching(c.Reach, route))
		}
		return list
	}
	for _, f := range families {
		if a := c.public(f); a.IsValid() {
			list = append(list, c.named("--public-ip "+a.String(), a.String(), families)...)
			break
		}
	}
	if len(families) > 1 {
		return list // flannel has no more; what follows chooses for each family alone
	}
	if ips := c.own(families[0]); len(ips) > 0 {
		r := rule{text: "the node's InternalIP",
			matches: func(_ netstate.Interface, a netip.Addr) bool { return slices.Contains(ips, a) }}
		if k := slices.IndexFunc(ips, func(ip netip.Addr) bool { return isOn(interfaces, ip) }); k >= 0 {
			r.best = ips[k]
		}
		list = append(list, r)
	}
	return append(list, rule{text: defaultRoute, matches: c.hasDefault})
}

// isOn reports whether one of the interfaces has the address.
func isOn(interfaces []netstate.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(interfaces, func(i netstate.Interface) bool { return i.Has(a) })
}

// own returns the node's own addresses of one family.
func (c Choice) own(f netstate.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.NodeIPs), func(a netip.Addr) bool { return netstate.FamilyOf(a) != f })
}

const defaultRoute = "the default route"

// hasDefault reports whether a's family has its default route through i and need not wait for the
// node's own address.
func (c Choice) hasDefault(i netstate.Interface, a netip.Addr) bool {
	if !slices.Contains(i.Default, netstate.FamilyOf(a)) {
		return false
	}
	own := c.own(netstate.FamilyOf(a))
	wasOwn := slices.ContainsFunc(c.Last, func(last netip.Addr) bool { return slices.Contains(own, last) })
	return len(own) == 0 || slices.Contains(c.Last, a) || c.Settled && !wasOwn
}

// named returns the rule for the interface of this name or address, none if it is an address of
// another family.
func (c Choice) named(text, name string, families []netstate.Family) []rule {
	switch want, err := netip.ParseAddr(name); {
	case name == "": // as flannel takes it
		return []rule{{text: defaultRoute, matches: Choice{}.hasDefault}}
	case err != nil:
		return []rule{{text: text, matches: byName(name)}}
	case !slices.Contains(families, netstate.FamilyOf(want)):
		return nil
	default:
		other := c.public(netstate.IPv6)
		if want.Is6() {
			other = c.public(netstate.IPv4)
		}
		return []rule{{text: text, best: want, matches: func(i netstate.Interface, a netip.Addr) bool {
			if netstate.FamilyOf(a) == netstate.FamilyOf(want) {
				return a == want
			}
			return i.Has(want) && (!other.IsValid() || a == other)
		}}}
	}
}

// matching returns the rules for the first interface with matching addresses of all families, else
// the first with a matching name.
func matching(p *regexp.Regexp, interfaces []netstate.Interface, families []netstate.Family) []rule {
	text := "--iface-regex " + p.String()
	if p.String() == "" {
		return Choice{}.named(text, "", families)
	}
	byAddr := rule{text: text,
		matches: func(_ netstate.Interface, a netip.Addr) bool { return p.MatchString(a.String()) }}
	k := slices.IndexFunc(interfaces, func(i netstate.Interface) bool { return !i.Owned && p.MatchString(i.Name) })
	if k < 0 {
		return []rule{byAddr}
	}
	return []rule{byAddr, {text: text, matches: byName(interfaces[k].Name)}}
}

// reaching returns the rule for the interface through which packets to an address leave.
func reaching(to netip.Addr, route routeTo) rule {
	dev, src, err := route(to)
	r := rule{text: "--iface-can-reach " + to.String(), err: err, matches: byName(dev)}
	if to.Is4() { // of IPv6, flannel takes the interface's first address
		r.best = src
	}
	return r
}

func byName(name string) func(netstate.Interface, netip.Addr) bool {
	return func(i netstate.Interface, _ netip.Addr) bool { return i.Name == name }
}
