package doctor

import (
	"net/netip"
	"slices"
	"strings"
)

// Chain is a firewall chain as iptables-save or nft tell of it.
type Chain struct {
	Family   string // ip, ip6, inet, bridge
	Table    string
	Name     string
	Hook     string // prerouting, forward, …; empty: rules jump to it
	Priority int
	Policy   string // accept or drop; of a chain with a hook
	Rules    []Rule
	Ours     bool
}

// Rule is one rule, as far as it was understood.
type Rule struct {
	Src, Dst  Match
	In, Out   DevMatch
	Proto     string // empty: any
	DPort     int    // 0: any
	UnknownIf string // a condition that was not understood: the rule is taken not to match
	Verdict   string // accept, drop, reject, masquerade, return, jump, goto, or empty: goes on
	Target    string // of jump and goto
	Text      string
}

// Match is a condition on an address; the zero value is none.
type Match struct {
	Prefixes []netip.Prefix
	Not      bool
}

func (m Match) holds(a netip.Addr) bool {
	if len(m.Prefixes) == 0 {
		return true
	}
	return slices.ContainsFunc(m.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) != m.Not
}

// DevMatch is a condition on an interface; the zero value is none. A name that ends in + or * is a beginning.
type DevMatch struct {
	Name string
	Not  bool
}

func (m DevMatch) holds(dev string) bool {
	if m.Name == "" {
		return true
	}
	prefix, wild := strings.CutSuffix(strings.TrimSuffix(m.Name, "*"), "+")
	wild = wild || strings.HasSuffix(m.Name, "*")
	return (dev == m.Name || wild && strings.HasPrefix(dev, prefix)) != m.Not
}

// Packet is a packet to ask the chains about.
type Packet struct {
	Src, Dst netip.Addr
	In, Out  string
	Proto    string // icmp, tcp, udp
	DPort    int
}

func (r Rule) matches(p Packet) bool {
	return r.UnknownIf == "" && r.Src.holds(p.Src) && r.Dst.holds(p.Dst) && r.In.holds(p.In) && r.Out.holds(p.Out) &&
		(r.Proto == "" || r.Proto == p.Proto) && (r.DPort == 0 || r.DPort == p.DPort)
}

// Decision is what a chain with a hook does with a packet.
type Decision struct {
	Verdict string // accept, drop, reject or masquerade
	By      string // the rule, or "policy"
	Chain   string // "ip filter FORWARD"
}

// Stops says whether the packet ends there.
func (d Decision) Stops() bool { return d.Verdict == "drop" || d.Verdict == "reject" }

// deepest bounds jumps, which the kernel does too.
const deepest = 16

// Decide runs a packet through the chains of a hook and of one type of tables, in the order of their priorities, and
// returns the first decision that ends it, or that alters it; else accept.
func Decide(chains []Chain, hook string, p Packet) Decision {
	family := "ip"
	if p.Src.Is6() {
		family = "ip6"
	}
	var hooked []Chain
	for _, c := range chains {
		if c.Hook == hook && (c.Family == family || c.Family == "inet") {
			hooked = append(hooked, c)
		}
	}
	slices.SortStableFunc(hooked, func(a, b Chain) int { return a.Priority - b.Priority })
	for _, c := range hooked {
		verdict, by := run(chains, c, p, 0)
		if verdict == "" || verdict == "return" {
			verdict, by = c.Policy, "policy "+c.Policy
		}
		if verdict != "accept" && verdict != "" {
			return Decision{verdict, by, c.Family + " " + c.Table + " " + c.Name}
		}
	}
	return Decision{Verdict: "accept"}
}

// run is the verdict of one chain; empty: none.
func run(chains []Chain, c Chain, p Packet, depth int) (verdict, by string) {
	if depth > deepest {
		return "", ""
	}
	for _, r := range c.Rules {
		if !r.matches(p) {
			continue
		}
		switch r.Verdict {
		case "":
		case "jump", "goto":
			i := slices.IndexFunc(chains, func(o Chain) bool { return o.Family == c.Family && o.Table == c.Table && o.Name == r.Target })
			if i < 0 {
				continue
			}
			if verdict, by := run(chains, chains[i], p, depth+1); verdict != "" && verdict != "return" {
				return verdict, by
			} else if r.Verdict == "goto" {
				return "return", ""
			}
		default:
			return r.Verdict, r.Text
		}
	}
	return "", ""
}
