package filter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// randomState returns a valid state of all families: some sets with elements, chains that refer to sets and to later
// chains, maps that go to chains, and often a hook.
func randomState(r *rand.Rand) netstate.State {
	state := netstate.State{}
	for _, family := range families {
		if r.IntN(8) > 0 {
			(&generator{r, family, state, map[netstate.SetType][]string{}, nil, false}).fill()
		}
	}
	return state
}

type generator struct {
	*rand.Rand
	family netstate.Family
	state  netstate.State
	sets   map[netstate.SetType][]string
	chains []string
	maps   bool
}

func (g *generator) fill() {
	for i, kind := range types {
		if ofFrames(kind) != (g.family == netstate.Ethernet) {
			continue
		}
		for j := range 1 + g.IntN(3) {
			name := fmt.Sprintf("set-%d-%d", i, j)
			g.sets[kind] = append(g.sets[kind], name)
			g.state.Add(netstate.Set{Family: g.family, Name: name, Type: kind})
		}
	}
	for i := range g.IntN(6) {
		name := fmt.Sprintf("in-%d", i)
		g.state.Add(netstate.Filter{Family: g.family, Name: name, Rules: g.rules()})
		g.chains = append(g.chains, name)
	}
	for kind, names := range g.sets {
		for _, name := range names {
			for range g.IntN(20) {
				if e, ok := g.element(kind, name); ok {
					g.state.Add(e)
				}
			}
		}
	}
	g.maps = true // no chain that a map goes to may look into a map: that could be a circle
	g.state.Add(netstate.Filter{Family: g.family, Name: "egress", Rules: g.rules()})
	if g.IntN(5) > 0 {
		g.state.Add(netstate.Hook{Family: g.family, Rules: g.rules()})
	}
	if g.IntN(2) > 0 && g.family != netstate.Ethernet {
		g.state.Add(netstate.Hook{Family: g.family, Local: true, Rules: g.rules()})
	}
}

// rules returns up to five rules; they jump to chains that exist already, so that there is no circle.
func (g *generator) rules() string {
	var lines []string
	for range g.IntN(6) {
		var words []string
		for range g.IntN(3) {
			words = append(words, g.match())
		}
		if g.family != netstate.Ethernet {
			words = slices.Insert(words, 0, pick(g, [][]string{nil, {"backwards"}, {"errors"}}...)...)
		}
		if g.IntN(3) == 0 {
			words = append(words, "counter")
		}
		lines = append(lines, strings.Join(append(words, g.end()), " "))
	}
	return strings.Join(lines, "\n")
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) match() string {
	set := func(kind netstate.SetType) string { return "@" + pick(g, g.sets[kind]...) }
	if g.family == netstate.Ethernet {
		return pick(g, "iifgroup 116", "ether type arp", "iifname "+set(netstate.Devices), "saddr fe80::/10", "daddr 10.0.0.0/8",
			"ether type ip iifname . ip saddr "+set(netstate.IPv4Sources),
			"ether type ip6 iifname . ip6 saddr "+set(netstate.IPv6Sources))
	}
	switch g.IntN(12) {
	case 0:
		return pick(g, "ct reply established", "ct related", "new", "tcp without syn")
	case 1:
		return pick(g, "iifname cni0", "oifname eth0")
	case 2:
		return pick(g, "saddr ", "daddr ") + set(netstate.Addresses)
	case 3:
		return pick(g, "saddr ", "daddr ") + set(netstate.Ranges)
	case 4:
		return "saddr . daddr " + set(netstate.Selves)
	case 5:
		return "daddr . proto . port " + set(netstate.NamedPorts)
	case 6, 7:
		return pick(g, "saddr ", "daddr ") + g.prefix().String()
	case 8:
		return fmt.Sprintf("proto %d", g.IntN(256))
	case 9:
		return pick(g, "icmpv6 133-137", pick(g, "tcp", "udp", "sctp")+" dport "+set(netstate.PortRanges))
	case 10:
		return fmt.Sprintf("%s dport %d", pick(g, "tcp", "udp", "sctp"), g.IntN(1<<16))
	}
	return fmt.Sprintf("%s dport %d-%d", pick(g, "tcp", "udp", "sctp"), g.IntN(1<<15), 1<<15+g.IntN(1<<15))
}

func (g *generator) end() string {
	switch {
	case g.IntN(4) == 0 && len(g.chains) > 0:
		return pick(g, "jump ", "goto ") + pick(g, g.chains...)
	case g.maps && g.family != netstate.Ethernet && g.IntN(3) == 0:
		return pick(g, "saddr", "daddr") + " vmap @" + pick(g, g.sets[netstate.Verdicts]...)
	}
	if g.family != netstate.Ethernet && g.IntN(6) == 0 {
		return "reset"
	}
	return pick(g, "accept", "drop", "return", "log in-1", "log "+strings.Repeat("x", logPrefix-1))
}

// addr returns one of few addresses, so that states have some in common, and prefixes touch.
func (g *generator) addr() netip.Addr {
	family := g.family
	if family == netstate.Ethernet {
		family = pick(g, netstate.Families[:]...)
	}
	addr := make([]byte, family.Bits()/8)
	for i := range addr {
		addr[i] = pick[byte](g, 0, 10, 255)
	}
	addr[len(addr)-1] = byte(g.IntN(256))
	a, _ := netip.AddrFromSlice(addr)
	return a
}

func (g *generator) prefix() netip.Prefix {
	return netip.PrefixFrom(g.addr(), pick(g, 0, 1, 8, 9, 16, 24, 25, 30, 31, 32, g.family.Bits())).Masked()
}

// element returns an element that fits, unless it overlaps with another one.
func (g *generator) element(kind netstate.SetType, set string) (netstate.Element, bool) {
	e := netstate.Element{Set: set, Prefix: netstate.Host(g.addr())}
	switch kind {
	case netstate.Ranges:
		e.Prefix = g.prefix()
		if g.IntN(10) > 0 && e.Prefix.Bits() < 20 {
			return e, false
		}
		if last := g.addr(); g.IntN(2) == 0 && e.Prefix.Addr().Less(last) {
			e = netstate.Range(set, e.Prefix.Addr(), last)
		}
		return e, !g.overlaps(kind, e)
	case netstate.PortRanges:
		e.Prefix, e.Port = g.family.All(), pick[uint16](g, 0, 1, 80, 81, 65535, uint16(g.IntN(1<<16)))
		e.LastPort = pick(g, e.Port, max(e.Port, uint16(g.IntN(1<<16))))
		return e, !g.overlaps(kind, e)
	case netstate.NamedPorts:
		e.Protocol, e.Port = pick[uint8](g, 6, 17, 132), uint16(g.IntN(1<<16))
	case netstate.Verdicts:
		e.Verdict = "return"
		if len(g.chains) > 0 && g.IntN(3) > 0 {
			e.Verdict = "goto " + pick(g, g.chains...)
		}
	case netstate.Devices:
		e.Dev, e.Prefix = fmt.Sprint("veth", g.IntN(20)), netip.Prefix{}
	case netstate.IPv4Sources, netstate.IPv6Sources:
		e.Dev = fmt.Sprint("veth", g.IntN(20))
		return e, e.Prefix.Addr().Is4() == (kind == netstate.IPv4Sources)
	}
	return e, true
}

// overlaps reports whether the set has a range with which one has something in common.
func (g *generator) overlaps(kind netstate.SetType, e netstate.Element) bool {
	for _, o := range g.state {
		other, ok := o.(netstate.Element)
		if !ok || other.Set != e.Set || other.Prefix.Addr().BitLen() != e.Prefix.Addr().BitLen() {
			continue
		}
		apart := lastOf(e).Less(other.Prefix.Addr()) || lastOf(other).Less(e.Prefix.Addr())
		if kind == netstate.PortRanges {
			apart = e.LastPort < other.Port || other.LastPort < e.Port
		}
		if !apart {
			return true
		}
	}
	return false
}
