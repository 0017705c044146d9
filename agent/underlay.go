package agent

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// Choice says how the interface between the nodes is chosen, for each address family alone. The first rule
// that is set decides: Names, Patterns, Reach, then NodeIPs, then the default route.
type Choice struct {
	Names    []string         // --iface: interface names or addresses, tried in order
	Patterns []*regexp.Regexp // --iface-regex: match an interface's name or one of its addresses
	Reach    []netip.Addr     // --iface-can-reach: the interface that the route to it uses
	NodeIPs  []netip.Addr     // the node's own addresses as the cluster knows them
	Public   []netip.Addr     // --public-ip, --public-ipv6: advertised instead of the chosen address
}

// routeTo finds the interface towards an address.
type routeTo func(netip.Addr) (dev string, err error)

// Pick chooses the underlay of one family. It stays with the address that it chose before as long as that
// still satisfies the rule.
func (c Choice) Pick(interfaces []netstate.Interface, is4 bool, before backend.Underlay, route routeTo) (backend.Underlay, error) {
	candidates, err := c.candidates(usable(interfaces, is4), is4, route)
	if err != nil {
		return backend.Underlay{}, err
	}
	if len(candidates) == 0 {
		return backend.Underlay{}, fmt.Errorf("no interface with an %s address %s; there are: %s",
			familyName(is4), c.rule(), describe(interfaces))
	}
	for _, u := range candidates {
		if u.Dev == before.Dev && u.Local == before.Local {
			return c.advertise(u), nil
		}
	}
	return c.advertise(candidates[0]), nil
}

// rule is the deciding rule in words.
func (c Choice) rule() string {
	switch {
	case len(c.Names) > 0:
		return "matches --iface " + strings.Join(c.Names, " or ")
	case len(c.Patterns) > 0:
		return fmt.Sprintf("matches --iface-regex %v", c.Patterns)
	case len(c.Reach) > 0:
		return fmt.Sprintf("reaches %v (--iface-can-reach)", c.Reach)
	}
	return "is the node's own or has the default route (choose one with --iface)"
}

// candidates are the underlays that the deciding rule allows, the best first.
func (c Choice) candidates(interfaces []netstate.Interface, is4 bool, route routeTo) ([]backend.Underlay, error) {
	switch {
	case len(c.Names) > 0:
		return matching(interfaces, is4, c.Names, func(name string, i netstate.Interface, a netip.Addr) bool {
			return i.Name == name || a.String() == name
		}), nil
	case len(c.Patterns) > 0:
		return matching(interfaces, is4, c.Patterns, func(p *regexp.Regexp, i netstate.Interface, a netip.Addr) bool {
			return p.MatchString(i.Name) || p.MatchString(a.String())
		}), nil
	case len(c.Reach) > 0:
		return c.reaching(interfaces, is4, route)
	}
	byNodeIP := matching(interfaces, is4, c.NodeIPs, func(ip netip.Addr, _ netstate.Interface, a netip.Addr) bool { return a == ip })
	if len(byNodeIP) > 0 {
		return byNodeIP, nil
	}
	return matching(interfaces, is4, []bool{true}, func(_ bool, i netstate.Interface, _ netip.Addr) bool {
		return is4 && i.Default[0] || !is4 && i.Default[1]
	}), nil
}

func (c Choice) reaching(interfaces []netstate.Interface, is4 bool, route routeTo) ([]backend.Underlay, error) {
	var devs []string
	for _, a := range c.Reach {
		if a.Is4() != is4 {
			continue
		}
		dev, err := route(a)
		if err != nil {
			return nil, err
		}
		devs = append(devs, dev)
	}
	return matching(interfaces, is4, devs, func(dev string, i netstate.Interface, _ netip.Addr) bool { return i.Name == dev }), nil
}

// matching lists the addresses that one of the rules takes: by rule, then by interface, then by address.
func matching[R any](interfaces []netstate.Interface, is4 bool, rules []R, takes func(R, netstate.Interface, netip.Addr) bool) []backend.Underlay {
	var found []backend.Underlay
	for _, rule := range rules {
		for _, i := range interfaces {
			for _, p := range i.Addrs {
				if p.Addr().Is4() == is4 && takes(rule, i, p.Addr()) {
					found = append(found, backend.Underlay{Dev: i.Name, Local: p.Addr(), MTU: i.MTU, OnLink: i.OnLink, AcceptRA: i.AcceptRA})
				}
			}
		}
	}
	return found
}

// usable are the interfaces that are up, not our own, and have an address of the family.
func usable(interfaces []netstate.Interface, is4 bool) []netstate.Interface {
	var list []netstate.Interface
	for _, i := range interfaces {
		if _, ok := i.First(is4); ok && i.Up && !i.Owned {
			list = append(list, i)
		}
	}
	return list
}

func (c Choice) advertise(u backend.Underlay) backend.Underlay {
	u.Public = u.Local
	for _, a := range c.Public {
		if a.Is4() == u.Local.Is4() {
			u.Public = a
		}
	}
	return u
}

func familyName(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}

// describe lists the interfaces as an error shows them: "eth0 (10.0.2.15/24), eth1 (down)".
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
