// Package isolation says what the rules by which a node isolates its pods do with a connection: from what the kernel has
// of them, whatever network policies there are. It is pure.
package isolation

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter/grammar"
	"github.com/twill-net/twill/policy"
)

// Tables are what a node's kernel holds. The zero value holds nothing, and isolates nobody.
type Tables struct {
	state  netstate.State
	ranges map[string][]netstate.Element       // of sets of ranges
	spans  map[netstate.Key][]Ports            // of sets of port numbers, which have no protocol
	named  map[string]map[netip.Prefix][]Ports // of sets of named ports
}

// Verdict is what the rules about one end of a connection say.
type Verdict struct {
	Direction policy.Direction
	Chain     string  // that judges
	Unknown   bool    // the address is the node's, and no pod is known to have it: nothing passes
	Unread    bool    // the chain has other rules than policies make: nothing is known of it
	Allowed   []Ports // what passes, but for what of it is denied
	Denied    []Ports // of what would else pass
	rules     []rule
}

// rule is what is done with some ports. The first rule that has a port decides.
type rule struct {
	Ports

	allows bool
}

// New reads what netstate/filter observed.
func New(state netstate.State) Tables {
	t := Tables{state: state, ranges: map[string][]netstate.Element{}, spans: map[netstate.Key][]Ports{},
		named: map[string]map[netip.Prefix][]Ports{}}
	for _, o := range state {
		e, ok := o.(netstate.Element)
		if !ok {
			continue
		}
		set, _ := state[netstate.Set{Family: netstate.FamilyOf(e.Prefix.Addr()), Name: e.Set}.Key()].(netstate.Set)
		switch set.Type {
		case netstate.Ranges:
			t.ranges[e.Set] = append(t.ranges[e.Set], e)
		case netstate.PortRanges:
			t.spans[set.Key()] = append(t.spans[set.Key()], Ports{First: e.Port, Last: e.LastPort})
		case netstate.NamedPorts:
			if t.named[e.Set] == nil {
				t.named[e.Set] = map[netip.Prefix][]Ports{}
			}
			port := Ports{Protocol: protocols[strconv.Itoa(int(e.Protocol))], First: e.Port, Last: e.Port}
			t.named[e.Set][e.Prefix] = append(t.named[e.Set][e.Prefix], port)
		}
	}
	for _, spans := range t.spans {
		slices.SortFunc(spans, func(a, b Ports) int { return cmp.Compare(a.First, b.First) })
	}
	return t
}

// Judge returns what the rules about each end say of connections from one address to another that this node forwards.
// There are none about an end that is not isolated, or is not on the node.
func (t Tables) Judge(src, dst netip.Addr) (all []Verdict) {
	family := netstate.FamilyOf(src)
	if _, ok := t.state[netstate.Hook{Family: family}.Key()]; !ok {
		return nil
	}
	for _, v := range []Verdict{{Direction: policy.Egress}, {Direction: policy.Ingress}} {
		p := packet{Tables: t, family: family, src: src, dst: dst}
		if p.judge(&v) {
			all = append(all, v)
		}
	}
	return all
}

// packet is a connection's first packet, without its protocol and port.
type packet struct {
	Tables

	family   netstate.Family
	src, dst netip.Addr
}

// field returns the address of a field.
func (p packet) field(name string) netip.Addr {
	if name == "saddr" {
		return p.src
	}
	return p.dst
}

// judge fills in a verdict, and reports whether there is one.
func (p packet) judge(v *Verdict) bool {
	v.Chain = strings.ToLower(string(v.Direction))
	pod := p.dst
	if v.Direction == policy.Egress {
		pod = p.src
	}
	if e, ok := p.state[netstate.Element{Set: v.Chain, Prefix: netstate.Host(pod)}.Key()].(netstate.Element); ok {
		chain, isolated := strings.CutPrefix(e.Verdict, "goto ")
		if isolated {
			v.Chain = chain
			if v.rules, v.Unread = p.decisions(chain, Ports{}, 0); !v.Unread {
				v.summarize()
			}
		}
		return isolated
	}
	for _, line := range p.rules(v.Chain) {
		if ports, end := p.match(line); end == "drop" && len(ports) == 1 {
			v.Unknown = true
			return true
		}
	}
	return false
}

// rules returns the lines of a chain.
func (p packet) rules(chain string) []string {
	f, _ := p.state[netstate.Filter{Family: p.family, Name: chain}.Key()].(netstate.Filter)
	return strings.Split(f.Rules, "\n")
}

// depth is how many chains may go to another one: one of ClusterNetworkPolicies does to that of the other policies.
const depth = 2

// decisions returns what a chain does with those of the packet's ports that are within others. It is unread if it has a rule
// that policies do not make.
func (p packet) decisions(chain string, within Ports, deep int) (all []rule, unread bool) {
	lines := p.rules(chain)
	for _, line := range lines {
		ports, end := p.match(line)
		next, goes := strings.CutPrefix(end, "goto ")
		for _, port := range ports {
			both, ok := port.and(within)
			switch {
			case !ok:
			case goes:
				more, unread := p.decisions(next, both, deep+1)
				if all = append(all, more...); unread {
					return nil, true
				}
			case end != "":
				all = append(all, rule{both, end != "drop"})
			}
		}
		if end == "?" || deep >= depth {
			return nil, true
		}
	}
	return all, len(lines) == 0 || lines[0] == ""
}

// summarize fills in what passes, up to the first rule about everything.
func (v *Verdict) summarize() {
	var denied []Ports
	for _, r := range v.rules {
		switch {
		case !r.allows:
			denied = append(denied, r.Ports)
		case !slices.ContainsFunc(denied, func(d Ports) bool { return d.covers(r.Ports) }):
			v.Allowed = append(v.Allowed, r.Ports)
			v.Denied = denied
		}
		if r.Ports == (Ports{}) {
			break
		}
	}
}

// match returns the ports of the packet that a rule is about, and what it does with them; nothing if it is not about the
// packet. A rule that is not in the grammar of policies ends in "?".
func (p packet) match(line string) (ports []Ports, end string) {
	ports = []Ports{{}}
	for words := strings.Fields(line); len(words) > 0; {
		var c grammar.Clause
		c, words = grammar.Next(words)
		set, ok := strings.TrimPrefix(c.Arg, "@"), true
		switch c.Words {
		case "counter":
		case "accept", "return", "drop":
			return ports, c.Words
		case "goto":
			return ports, "goto " + c.Arg
		case "log":
			return nil, ""
		case "saddr . daddr":
			_, ok = p.state[netstate.Element{Set: set, Prefix: netstate.Host(p.src)}.Key()]
			ok = ok && p.src == p.dst
		case "daddr . proto . port":
			ports = p.named[set][netstate.Host(p.dst)]
			ok = len(ports) > 0
		case "saddr", "daddr":
			ok = p.contains(c.Arg, p.field(c.Words))
		case "proto":
			ports = []Ports{{Protocol: protocols[c.Arg]}}
			if ports[0].Protocol == "" {
				return nil, "?"
			}
		case "tcp dport", "udp dport", "sctp dport":
			if ports, ok = p.destinations(strings.TrimSuffix(c.Words, " dport"), c.Arg); !ok {
				return nil, "?"
			}
		default:
			return nil, "?"
		}
		if !ok {
			return nil, ""
		}
	}
	return nil, "?"
}

// destinations reads "tcp" and the ports of it: "80", "100-200" or the name of a set, "@ports-1".
func (p packet) destinations(protocol, what string) (ports []Ports, ok bool) {
	set, named := strings.CutPrefix(what, "@")
	if !named {
		port, readable := parsePorts(protocol, what)
		return []Ports{port}, readable
	}
	for _, span := range p.spans[netstate.Set{Family: p.family, Name: set}.Key()] {
		span.Protocol = policy.Protocol(strings.ToUpper(protocol))
		ports = append(ports, span)
	}
	return ports, len(ports) > 0
}

// contains reports whether an address is in a set, or in a range.
func (p packet) contains(what string, a netip.Addr) bool {
	if set, ok := strings.CutPrefix(what, "@"); ok {
		_, has := p.state[netstate.Element{Set: set, Prefix: netstate.Host(a)}.Key()]
		return has || slices.ContainsFunc(p.ranges[set], func(r netstate.Element) bool { return r.Contains(a) })
	}
	prefix, err := netip.ParsePrefix(what)
	return err == nil && prefix.Contains(a)
}
