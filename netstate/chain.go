package netstate

import (
	"fmt"
	"net/netip"
	"strings"
)

// Mode is the kernel interface that carries firewall rules.
type Mode uint8

// The modes. A chain of one mode is another object than the same chain of the other, so switching the mode
// is a plan that adds the one and deletes the other.
const (
	NFTables Mode = iota
	IPTables
)

func (m Mode) String() string { return [...]string{"nftables", "iptables"}[m] }

// Role is what a chain is for.
type Role uint8

// The roles, and the names of their chains. The first two are flannel's.
const (
	Postrouting  Role = iota // FLANNEL-POSTRTG in table nat; postrtg in flannel-ipv4 and flannel-ipv6
	Forward                  // FLANNEL-FWD in table filter; forward in flannel-ipv4 and flannel-ipv6
	GuardInput               // who may send into the overlay: TWILL-INPUT in table mangle; guard-input in flannel-ipv4 …
	GuardForward             // what pods may send to nodes: TWILL-FORWARD in table mangle; guard-forward in …
	GuardSource              // what may come in a pod's name; guard-source in …, in the nftables mode alone
)

func (r Role) String() string {
	return [...]string{"postrouting", "forward", "guard-input", "guard-forward", "guard-source"}[r]
}

// Place is where a chain's rules stand among the rules of others in the same base chain: the jump to an iptables
// chain, and for nftables' forward chain the accepts in "ip filter FORWARD", if there is such a chain, because an
// accept in a table of ours cannot overrule another table's drop.
type Place uint8

// The places.
const (
	// Appended is flannel's order. The rules are appended, but stand before the unconditional REJECT or DROP at the
	// chain's end, if it has one. What was there before decides first, and so does what others put before them later.
	Appended  Place = iota
	First           // nothing stands before the rules: no policy of anyone decides first
	Misplaced       // as observed: neither of the two
)

func (p Place) String() string { return [...]string{"appended", "first", "misplaced"}[p] }

// MaxRules is the number of rules that a Chain can hold: room for the 64 networks of ip-masq-agent's limit, and for those
// that a node is on.
const MaxRules = 96

// Chain is one firewall chain with all its rules: it is compared and written as a whole. Slot: mode, family
// and role. Mark: flannel's table or chain name. Cascade: none.
type Chain struct {
	Mode   Mode
	Family Family
	Role   Role
	Place  Place
	Rules  [MaxRules]Rule
	Extra  string
}

// Key implements Object.
func (c Chain) Key() Key {
	return Key{Kind: KindChain, Name: fmt.Sprintf("%s %s %s", c.Mode, c.Family.nft(), c.Role)}
}

func (c Chain) place() string {
	if c.Place == Appended {
		return ""
	}
	return c.Place.String()
}

func (c Chain) String() string {
	var b strings.Builder
	b.WriteString(words("chain", c.Mode.String(), c.Family.nft(), c.Role.String(), c.place(), c.Extra))
	for _, r := range c.Rules {
		if r != (Rule{}) {
			b.WriteString("; " + r.String())
		}
	}
	return b.String()
}

// Strays are what stands in our nftables table of a family beside our chains: other chains, sets, maps, flowtables and
// stateful objects. They are never wanted. Slot: family. Mark: the table's name. Cascade: none.
type Strays struct {
	Family Family
	Names  string // "chain extra hook forward priority 9 policy drop, set more"
}

// Key implements Object.
func (s Strays) Key() Key {
	return Key{Kind: KindChain, Name: "nftables " + s.Family.nft() + " strays"}
}

func (s Strays) String() string { return words("strays", NFTables.String(), s.Family.nft(), s.Names) }

// Verdict is what a rule does with a packet that it matches.
type Verdict uint8

// The verdicts. None makes the zero Rule no rule at all.
const (
	None Verdict = iota
	Accept
	Drop
	Return
	Masquerade
	MasqueradeRandom // --random-fully
)

func (v Verdict) String() string {
	return [...]string{"none", "accept", "drop", "return", "masquerade", "masquerade random-fully"}[v]
}

// Transport is how a packet is carried: the number of its protocol and, of UDP, the port that it is sent to.
type Transport struct {
	Protocol uint8
	Port     uint16
}

// The protocols that carry packets between nodes (IANA's numbers).
const (
	IPv4InIP uint8 = 4
	UDP      uint8 = 17
	IPv6InIP uint8 = 41
)

func (t Transport) String() string {
	switch t.Protocol {
	case 0:
		return ""
	case UDP:
		return fmt.Sprintf("udp dport %d", t.Port)
	}
	return fmt.Sprintf("proto %d", t.Protocol)
}

// Rule matches packets by all of its conditions that are set.
type Rule struct {
	Mark    uint32 // packets that have all of these bits set
	Local   bool   // the source address is the host's own
	In      string // the input interface
	Out     string // the output interface
	NotOut  string // the output interface is not this one; only together with Local
	Back    string // packets to the source would leave through this interface; in the nftables mode alone
	Packet  Transport
	Src     netip.Prefix
	NotSrc  netip.Prefix
	Dst     netip.Prefix
	NotDst  netip.Prefix
	Verdict Verdict
	// Extra is what an observed rule has beyond these fields, or the whole rule if it was not understood.
	Extra string
}

func (r Rule) String() string {
	return words(r.mark(), flag(r.Local, "local"), prefixed("iif ", r.In), prefixed("oif ", r.Out),
		prefixed("oif != ", r.NotOut),
		match("src ", r.Src), match("src != ", r.NotSrc), match("dst ", r.Dst), match("dst != ", r.NotDst),
		r.Packet.String(), prefixed("back ", r.Back), r.Verdict.String(), r.Extra)
}

func (r Rule) mark() string {
	if r.Mark == 0 {
		return ""
	}
	return fmt.Sprintf("mark & %#x", r.Mark)
}

func match(label string, p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return label + p.String()
}

func prefixed(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}
