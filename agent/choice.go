package agent

import (
	"net/netip"
	"regexp"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Choice says how the interface between the nodes is chosen. With any of Names, Patterns and Reach, these alone decide, in
// this order, and each only where the ones before it find nothing. Without, it is the interface that has the address of
// Public, then the one that has the node's own address, then the default route's.
type Choice struct {
	Names    []string         // --iface: interface names or addresses
	Patterns []*regexp.Regexp // --iface-regex: match an interface's address or its name
	Reach    netip.Addr       // --iface-can-reach: the interface that the route to this address uses
	Public   []netip.Addr     // --public-ip, --public-ipv6, or the node's annotation: advertised instead of the chosen address
	NodeIPs  []netip.Addr     // the node's InternalIPs
	Last     []netip.Addr     // what peers were told of this node in an earlier run
	// Settled says that a node's own address that no interface has will not come: an address translator has it.
	Settled bool
}

// rule is one way to find an interface.
type rule struct {
	text  string // as an error shows it
	takes func(netstate.Interface, netip.Addr) bool
	best  netip.Addr // of several addresses that it takes, this one; invalid: the first
	err   error      // it cannot be tried
}

// given reports whether the flags say which interface it is.
func (c Choice) given() bool {
	return len(c.Names)+len(c.Patterns) > 0 || c.Reach.IsValid() || len(c.Public) > 0
}

// rules are what decides for these families, in order.
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
		return list // what follows is Twill's own, and each family's
	}
	if ips := c.own(families[0]); len(ips) > 0 {
		r := rule{text: "the node's InternalIP", takes: func(_ netstate.Interface, a netip.Addr) bool { return slices.Contains(ips, a) }}
		if k := slices.IndexFunc(ips, func(ip netip.Addr) bool { return isOn(interfaces, ip) }); k >= 0 {
			r.best = ips[k]
		}
		list = append(list, r)
	}
	return append(list, rule{text: defaultRoute, takes: c.hasDefault})
}

// isOn reports whether one of the interfaces has the address.
func isOn(interfaces []netstate.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(interfaces, func(i netstate.Interface) bool { return i.Has(a) })
}

// own are the node's own addresses of one family.
func (c Choice) own(f netstate.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.NodeIPs), func(a netip.Addr) bool { return netstate.FamilyOf(a) != f })
}

const defaultRoute = "the default route"

// hasDefault reports whether a's family has its default route through i, and need not wait for the node's own address.
func (c Choice) hasDefault(i netstate.Interface, a netip.Addr) bool {
	if !slices.Contains(i.Default, netstate.FamilyOf(a)) {
		return false
	}
	own := c.own(netstate.FamilyOf(a))
	wasOwn := slices.ContainsFunc(c.Last, func(last netip.Addr) bool { return slices.Contains(own, last) })
	return len(own) == 0 || slices.Contains(c.Last, a) || c.Settled && !wasOwn
}

// named is the interface of this name or address, none if it is an address of another family.
func (c Choice) named(text, name string, families []netstate.Family) []rule {
	switch want, err := netip.ParseAddr(name); {
	case name == "": // as flannel takes it
		return []rule{{text: defaultRoute, takes: Choice{}.hasDefault}}
	case err != nil:
		return []rule{{text: text, takes: func(i netstate.Interface, _ netip.Addr) bool { return i.Name == name }}}
	case !slices.Contains(families, netstate.FamilyOf(want)):
		return nil
	default:
		other := c.public(netstate.IPv6)
		if want.Is6() {
			other = c.public(netstate.IPv4)
		}
		return []rule{{text: text, best: want, takes: func(i netstate.Interface, a netip.Addr) bool {
			if netstate.FamilyOf(a) == netstate.FamilyOf(want) {
				return a == want
			}
			return i.Has(want) && (!other.IsValid() || a == other)
		}}}
	}
}

// matching is the first interface that has addresses of all families that match, else the first whose name does.
func matching(p *regexp.Regexp, interfaces []netstate.Interface, families []netstate.Family) []rule {
	text := "--iface-regex " + p.String()
	if p.String() == "" {
		return Choice{}.named(text, "", families)
	}
	byAddr := rule{text: text, takes: func(_ netstate.Interface, a netip.Addr) bool { return p.MatchString(a.String()) }}
	k := slices.IndexFunc(interfaces, func(i netstate.Interface) bool { return !i.Owned && p.MatchString(i.Name) })
	if k < 0 {
		return []rule{byAddr}
	}
	return []rule{byAddr, {text: text, takes: func(i netstate.Interface, _ netip.Addr) bool { return i.Name == interfaces[k].Name }}}
}

// reaching is the interface through which packets to an address leave.
func reaching(to netip.Addr, route routeTo) rule {
	dev, src, err := route(to)
	r := rule{text: "--iface-can-reach " + to.String(), err: err, takes: func(i netstate.Interface, _ netip.Addr) bool { return i.Name == dev }}
	if to.Is4() { // of IPv6, flannel takes the interface's first address
		r.best = src
	}
	return r
}
