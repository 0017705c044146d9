// Package rules decides what a machine's firewall rules do with a packet, from the output of iptables-save and nft.
package rules

import (
	"net/netip"
	"slices"
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
	Src, Dst  Match
	In, Out   DevMatch
	Proto     string
	DPort     int
	State     StateMatch
	UnknownIf string // a condition that is not understood: the rule is taken not to match
	Verdict   Verdict
	Target    string // of Jump and Goto
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

// Packet is a packet at a hook, the first of its connection.
type Packet struct {
	Src, Dst netip.Addr
	In, Out  string // devices
	Proto    string // tcp, udp, ipip, …
	DPort    int
}

// conntrack is the priority of the kernel's connection tracking (NF_IP_PRI_CONNTRACK).
const conntrack = -200

// state returns the state of a new connection for a chain's rules. To those that run before connection tracking every
// packet is invalid: raw's, and of nftables' chains those of a lower priority.
func (c Chain) state() string {
	early := c.Priority < conntrack
	if c.Tool != "" {
		early = c.Table == "raw"
	}
	if early && (c.Hook == "prerouting" || c.Hook == "output") {
		return "invalid"
	}
	return "new"
}

func (r Rule) matches(p Packet, state string) bool {
	return r.UnknownIf == "" && r.State.holds(state) && r.Src.holds(p.Src) && r.Dst.holds(p.Dst) && r.In.holds(p.In) && r.Out.holds(p.Out) &&
		(r.Proto == "" || r.Proto == p.Proto) && (r.DPort == 0 || r.DPort == p.DPort)
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
	family := "ip"
	if p.Src.Is6() {
		family = "ip6"
	}
	var hooked []*Chain
	for i := range chains {
		if c := &chains[i]; c.Hook == hook && (c.Family == family || c.Family == "inet") {
			hooked = append(hooked, c)
		}
	}
	slices.SortStableFunc(hooked, func(a, b *Chain) int { return a.Priority - b.Priority })
	for _, c := range hooked {
		verdict, rule := run(chains, c, trial{p, c.state()}, 0)
		if verdict == "" || verdict == Return {
			verdict, rule = c.Policy, nil
		}
		if verdict != Accept && verdict != "" {
			return Decision{verdict, c, rule}
		}
	}
	return Decision{Verdict: Accept}
}

// maxDepth bounds jumps, as the kernel does.
const maxDepth = 16

// trial is a packet with the state that the chain of the hook sees its connection in.
type trial struct {
	packet Packet
	state  string
}

// run returns the verdict of one chain, empty if no rule decides.
func run(chains []Chain, c *Chain, t trial, depth int) (Verdict, *Rule) {
	if depth > maxDepth {
		return "", nil
	}
	for k := range c.Rules {
		r := &c.Rules[k]
		switch {
		case r.Verdict == "" || !r.matches(t.packet, t.state):
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
