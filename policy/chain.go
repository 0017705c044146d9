package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/twill-net/twill/netstate"
)

// chain is the rules of one family by which the pods to which some policies apply are judged in one direction, and the
// sets that they look into. Its name is made of its content: a chain is never rewritten, a changed one is another
// chain.
type chain struct {
	family    netstate.Family
	direction Direction
	name      string
	parts     map[string]part           // the chain, and what it goes to, by name
	pods      map[string]peer           // sets of pods' addresses
	blocks    map[string][]netip.Prefix // sets of address ranges
	ports     map[string]namedPort      // sets of the pods' ports that have a name
}

// part is one chain of the kernel's.
type part struct {
	rules    string
	policies []string // whose rules these are
}

// namedPort is a port by the name that pods give to it.
type namedPort struct {
	name     string
	protocol Protocol
}

// chainWriter writes a chain.
type chainWriter struct {
	chain
}

// newChain writes the chain of the policies that apply to some pods. The rules of the Admin tier are a chain of their
// own, which goes to that of the others with what no rule decides about, or one passes on.
func newChain(family netstate.Family, direction Direction, a Applying) chain {
	w := chainWriter{chain{family: family, direction: direction, parts: map[string]part{}, pods: map[string]peer{},
		blocks: map[string][]netip.Prefix{}, ports: map[string]namedPort{}}}
	next := w.allow()
	switch {
	case len(a.Isolating) > 0:
		next = "goto " + w.add(w.isolation(a.Isolating), mapped(a.Isolating, (*Policy).name))
	case len(a.Baseline) > 0:
		next = "goto " + w.add(w.tier(a.Baseline, next), mapped(a.Baseline, (*ClusterPolicy).name))
	}
	if len(a.Admin) > 0 {
		w.add(w.tier(a.Admin, next), mapped(a.Admin, (*ClusterPolicy).name))
	}
	return w.chain
}

// add adds the part that comes before the others, and returns its name.
func (w *chainWriter) add(lines, policies []string) string {
	prefix := "in-"
	if w.direction == Egress {
		prefix = "eg-"
	}
	rules := strings.Join(lines, "\n")
	w.name = prefix + hash(rules)
	w.parts[w.name] = part{rules, policies}
	return w.name
}

// isolation returns the rules of NetworkPolicies that isolate: what none allows is dropped.
func (w *chainWriter) isolation(policies []*Policy) (lines []string) {
	for _, p := range policies {
		for _, r := range p.rules(w.direction) {
			lines = append(lines, w.lines(r, w.allow())...)
		}
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if slices.Contains(lines, w.allow()) {
		return []string{w.allow()}
	}
	return append(lines, w.self(), "counter drop")
}

// tier returns the rules of ClusterNetworkPolicies, in their order.
func (w *chainWriter) tier(policies []*ClusterPolicy, next string) []string {
	lines := []string{w.self()}
	ends := map[Action]string{Accept: w.allow(), Deny: "counter drop", Pass: next}
	for _, p := range policies {
		for _, r := range p.rules(w.direction) {
			end := ends[r.action]
			lines = append(lines, w.lines(r.rule, end)...)
			if slices.Contains(lines, end) {
				return lines // nothing is left for the others
			}
		}
	}
	return append(lines, next)
}

// allow is the end of a rule that allows. What a pod may send has still to be judged where it arrives.
func (w *chainWriter) allow() string {
	if w.direction == Egress {
		return "return"
	}
	return "accept"
}

// self allows what a pod sends to itself.
func (w *chainWriter) self() string { return "saddr . daddr @" + selfSet + " " + w.allow() }

// lines returns a line for each peer and port of a rule.
func (w *chainWriter) lines(r rule, end string) (lines []string) {
	for _, peer := range w.peers(r) {
		for _, port := range w.portClauses(r) {
			lines = append(lines, strings.TrimLeft(peer+port+end, " "))
		}
	}
	return lines
}

// peers are conditions of the peer's address, each with a space at its end. None at all is the empty one.
func (w *chainWriter) peers(r rule) (clauses []string) {
	if r.anyPeer {
		return []string{""}
	}
	field := "saddr "
	if w.direction == Egress {
		field = "daddr "
	}
	var ranges []netip.Prefix
	for _, p := range r.peers {
		switch {
		case p.nobody():
		case p.pods == nil:
			ranges = append(ranges, p.ranges...)
		default:
			name := "pods-" + hash(p.String())
			w.pods[name] = p
			clauses = append(clauses, field+"@"+name+" ")
		}
	}
	clause, ok := w.block(disjoint(ranges))
	if !ok {
		return clauses
	}
	if clause != "" {
		clause = field + clause + " "
	}
	if without, ok := w.block(r.without()); ok {
		clause += field + "!= " + without + " "
	}
	if clause == "" {
		return []string{""}
	}
	return append(clauses, clause)
}

// without returns the ends of tunnels that are in address ranges of the rule, and that none of its peers means.
func (r rule) without() (all []netip.Prefix) {
	for _, p := range r.peers {
		for _, source := range p.without {
			if !slices.ContainsFunc(r.peers, func(p peer) bool { return p.pods == nil && p.matches(Endpoint{Addr: source}) }) {
				all = append(all, netstate.Host(source))
			}
		}
	}
	return disjoint(all)
}

// nobody reports whether no pod can be the peer, as where a selector cannot be read.
func (p peer) nobody() bool {
	return p.pods != nil && (labels.MatchesNothing(p.pods) || p.namespaces != nil && labels.MatchesNothing(p.namespaces))
}

// block is the range, or the set of the ranges, of the family; empty: all addresses. It is not ok if there is none.
func (w *chainWriter) block(ranges []netip.Prefix) (clause string, ok bool) {
	var parts []netip.Prefix
	for _, r := range ranges {
		if netstate.FamilyOf(r.Addr()) == w.family {
			parts = append(parts, r)
		}
	}
	switch {
	case len(parts) == 0:
		return "", false
	case len(parts) == 1 && parts[0].Bits() == 0:
		return "", true
	case len(parts) == 1:
		return parts[0].String(), true
	}
	name := "block-" + hash(fmt.Sprint(parts))
	w.blocks[name] = parts
	return "@" + name, true
}

// portClauses are conditions of the port, each with a space at its end.
func (w *chainWriter) portClauses(r rule) (clauses []string) {
	if r.anyPort {
		return []string{""}
	}
	for _, p := range r.ports {
		protocol := p.protocol()
		number, known := protocolNumbers[protocol]
		switch {
		case !known:
		case p.Port == nil:
			clauses = append(clauses, fmt.Sprintf("proto %d ", number))
		case p.Port.Type == intstr.String:
			port := namedPort{p.Port.StrVal, protocol}
			name := "port-" + hash(string(port.protocol)+" "+port.name)
			w.ports[name] = port
			clauses = append(clauses, "daddr . proto . port @"+name+" ")
		default:
			if first, last, ok := p.span(); ok {
				clauses = append(clauses, fmt.Sprintf("%s dport %s ", strings.ToLower(string(protocol)), span(first, last)))
			}
		}
	}
	return clauses
}

func span(first, last uint16) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// protocolNumbers are IANA's.
var protocolNumbers = map[Protocol]uint8{TCP: 6, UDP: 17, SCTP: 132}

// subtract returns the part of a range that is in none of the exceptions, which are sorted and disjoint, as disjoint
// ranges in order. It is not ok if these are more than a number.
func subtract(block netip.Prefix, except []netip.Prefix, most int) (all []netip.Prefix, ok bool) {
	except = slices.DeleteFunc(slices.Clone(except), func(x netip.Prefix) bool { return !x.Overlaps(block) })
	switch {
	case len(except) == 0:
		return []netip.Prefix{block}, most > 0
	case except[0].Bits() <= block.Bits():
		return nil, true
	}
	for _, half := range halves(block) {
		some, ok := subtract(half, except, most-len(all))
		if all = append(all, some...); !ok {
			return nil, false
		}
	}
	return all, true
}

// halves returns the two halves of a range of more than one address.
func halves(p netip.Prefix) [2]netip.Prefix {
	bits := p.Bits() + 1
	addr := p.Addr().AsSlice()
	addr[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
	top, _ := netip.AddrFromSlice(addr)
	return [2]netip.Prefix{netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(top, bits)}
}

// hash is 128 bits of SHA-256, in hex.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// objects returns the chain, those that it goes to, and their sets. The address ranges are complete; the others are the pods', which elements
// returns.
func (c chain) objects() (all []netstate.Object) {
	for name, p := range c.parts {
		all = append(all, netstate.Filter{Family: c.family, Name: name, Rules: p.rules})
	}
	for name := range maps.Keys(c.pods) {
		all = append(all, netstate.Set{Family: c.family, Name: name, Type: netstate.Addresses})
	}
	for name := range maps.Keys(c.ports) {
		all = append(all, netstate.Set{Family: c.family, Name: name, Type: netstate.NamedPorts})
	}
	for name, parts := range c.blocks {
		all = append(all, netstate.Set{Family: c.family, Name: name, Type: netstate.Ranges})
		for _, p := range parts {
			all = append(all, netstate.Element{Set: name, Prefix: p})
		}
	}
	return all
}
