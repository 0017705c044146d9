// Package rules decides what a machine's firewall rules do with a packet. It is pure. Rules are of the output of iptables-save, or
// of nf_tables, which doctor/rules/nft reads.
package rules

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Chain is a firewall chain.
type Chain struct {
	Family   string // ip, ip6, inet, bridge
	Table    string
	Name     string
	Hook     string // prerouting, forward, …; empty: only rules jump to it
	Priority int
	Policy   Verdict // of a chain with a hook: Accept or Drop
	Rules    []Rule
	Tool     string // iptables or ip6tables if it is theirs, else empty
}

// Verdict is what a rule or a chain does with a packet.
type Verdict string

// The verdicts. Masquerade stands for every change of the source address; an empty verdict goes on to the next rule.
const (
	Accept     Verdict = "accept"
	Drop       Verdict = "drop"
	Reject     Verdict = "reject"
	Masquerade Verdict = "masquerade"
	Return     Verdict = "return"
	Jump       Verdict = "jump"
	Goto       Verdict = "goto"
)

// Rule is one rule. The zero value of a condition matches every packet.
type Rule struct {
	Chain     string // that it is in
	Family    string // ip, ip6; empty: both, if its chain is of both
	Src, Dst  Match
	In, Out   DevMatch
	Proto     string
	DPorts    Ports
	State     StateMatch
	DstType   TypeMatch
	UnknownIf string // a condition that is not understood: the rule is taken not to match
	Verdict   Verdict
	Target    string // of Jump and Goto
	Comment   string
	Text      string
	Delete    string // the command that deletes the rule, empty if it is not known
}

// Match is a condition on an address.
type Match struct {
	Prefixes []netip.Prefix
	Not      bool
}

func (m Match) holds(a netip.Addr) bool {
	return len(m.Prefixes) == 0 ||
		slices.ContainsFunc(m.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) != m.Not
}

// DevMatch is a condition on an interface. A name that ends in + or * is a prefix.
type DevMatch struct {
	Name string
	Not  bool
}

func (m DevMatch) holds(dev string) bool {
	if m.Name == "" {
		return true
	}
	prefix := strings.TrimRight(m.Name, "*+")
	return (dev == m.Name || prefix != m.Name && strings.HasPrefix(dev, prefix)) != m.Not
}

// StateMatch is a condition on the state of the packet's connection.
type StateMatch struct {
	Any []string // new, established, …
	Not bool
}

func (m StateMatch) holds(state string) bool {
	return len(m.Any) == 0 || slices.Contains(m.Any, state) != m.Not
}

// Ports is a condition on a port: it is in one of the ranges, each of which has its ends. The zero value holds for all.
type Ports [][2]int

func (p Ports) holds(port int) bool {
	return len(p) == 0 || slices.ContainsFunc(p, func(r [2]int) bool { return r[0] <= port && port <= r[1] })
}

// String returns the ranges as nft has them.
func (p Ports) String() string {
	var list []string
	for _, r := range p {
		text := strconv.Itoa(r[0])
		if r[1] != r[0] {
			text += "-" + strconv.Itoa(r[1])
		}
		list = append(list, text)
	}
	return strings.Join(list, ",")
}

// TypeMatch is a condition on what the destination is for this machine: local, unicast, multicast, …
type TypeMatch struct {
	Name string
	Not  bool
}

// holds reports whether the condition holds at a hook. Packets that are tried go to one machine, which is this one where they
// come in; at other hooks than these two it is not known, and the rule is taken not to match.
func (m TypeMatch) holds(hook string) bool {
	is := map[string]string{"input": "local", "forward": "unicast"}[hook]
	return m.Name == "" || is != "" && (is == m.Name) != m.Not
}

// Packet is a packet at a hook: the first of its connection, or the answer to that.
type Packet struct {
	Src, Dst netip.Addr
	In, Out  string // devices
	Proto    string // tcp, udp, ipip, …
	DPort    int
	Answer   bool
}

// Protocol returns the name of a protocol, of which iptables and nft take the number's, or what /etc/protocols calls it.
func Protocol(text string) string {
	if name, ok := protocols[text]; ok {
		return name
	}
	return text
}

var protocols = map[string]string{"1": "icmp", "4": "ipip", "ipencap": "ipip", "6": "tcp", "17": "udp", "41": "ipv6", "50": "esp",
	"58": "ipv6-icmp", "132": "sctp"}

// conntrack is the priority of the kernel's connection tracking (NF_IP_PRI_CONNTRACK).
const conntrack = -200

// state returns the state of a packet's connection for a chain's rules. To those that run before connection tracking every
// packet is invalid: raw's, and of nftables' chains those of a lower priority.
func (c Chain) state(p Packet) string {
	early := c.Priority < conntrack
	if c.Tool != "" {
		early = c.Table == "raw"
	}
	if early && (c.Hook == "prerouting" || c.Hook == "output") {
		return "invalid"
	}
	if p.Answer {
		return "established"
	}
	return "new"
}

func (r Rule) matches(t trial) bool {
	p := t.packet
	return r.UnknownIf == "" && (r.Family == "" || r.Family == familyOf(p.Src)) && r.State.holds(t.state) && r.DstType.holds(t.hook) && r.Src.holds(p.Src) && r.Dst.holds(p.Dst) &&
		r.In.holds(p.In) && r.Out.holds(p.Out) && (r.Proto == "" || r.Proto == p.Proto) && r.DPorts.holds(p.DPort)
}

// Decision is what the chains of a hook do with a packet.
type Decision struct {
	Verdict Verdict // Accept, Drop, Reject or Masquerade
	Chain   *Chain  // that decided; nil: none, the packet is accepted
	Rule    *Rule   // nil: the policy of the chain
}

// Stops reports whether the packet is dropped or rejected.
func (d Decision) Stops() bool { return d.Verdict == Drop || d.Verdict == Reject }

// By returns the rule, or the policy, that decided.
func (d Decision) By() string {
	switch {
	case d.Chain == nil:
		return ""
	case d.Rule == nil:
		return "policy " + string(d.Chain.Policy)
	}
	return d.Rule.Text
}

// String returns the name of the chain: "ip filter FORWARD".
func (c Chain) String() string { return c.Family + " " + c.Table + " " + c.Name }

// Decide runs a packet through the chains of a hook in the order of their priorities. It returns the first decision
// that ends or alters the packet, else Accept.
func Decide(chains []Chain, hook string, p Packet) Decision {
	family := familyOf(p.Src)
	var hooked []*Chain
	for i := range chains {
		if c := &chains[i]; c.Hook == hook && (c.Family == family || c.Family == "inet") {
			hooked = append(hooked, c)
		}
	}
	slices.SortStableFunc(hooked, func(a, b *Chain) int { return a.Priority - b.Priority })
	for _, c := range hooked {
		verdict, rule := run(chains, c, trial{p, c.state(p), hook}, 0)
		if verdict == "" || verdict == Return {
			verdict, rule = c.Policy, nil
		}
		if verdict != Accept && verdict != "" {
			return Decision{verdict, c, rule}
		}
	}
	return Decision{Verdict: Accept}
}

// familyOf returns the family of an address as nft names it.
func familyOf(a netip.Addr) string {
	if a.Is6() {
		return "ip6"
	}
	return "ip"
}

// maxDepth bounds jumps, as the kernel does.
const maxDepth = 16

// trial is a packet at a hook, with the state that the chain there sees its connection in.
type trial struct {
	packet Packet
	state  string
	hook   string
}

// run returns the verdict of one chain, empty if no rule decides.
func run(chains []Chain, c *Chain, t trial, depth int) (Verdict, *Rule) {
	if depth > maxDepth {
		return "", nil
	}
	for k := range c.Rules {
		r := &c.Rules[k]
		switch {
		case r.Verdict == "" || !r.matches(t):
			continue
		case r.Verdict != Jump && r.Verdict != Goto:
			return r.Verdict, r
		}
		i := slices.IndexFunc(chains, func(o Chain) bool {
			return o.Family == c.Family && o.Table == c.Table && o.Name == r.Target
		})
		if i < 0 {
			continue
		}
		if verdict, by := run(chains, &chains[i], t, depth+1); verdict != "" && verdict != Return {
			return verdict, by
		} else if r.Verdict == Goto {
			return Return, nil
		}
	}
	return "", nil
}
