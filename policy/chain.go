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

// chain is the rules of one family by which the pods that some policies isolate are judged in one direction, and the sets
// that they look into. Its name is made of its content: a chain is never rewritten, a changed one is another chain.
type chain struct {
	family    netstate.Family
	direction Direction
	policies  []string // whose rules these are, namespace/name
	name      string
	rules     string
	pods      map[string]peer           // sets of pods' addresses
	blocks    map[string][]netip.Prefix // sets of address ranges
	ports     map[string]namedPort      // sets of the pods' ports that have a name
}

// namedPort is a port by the name that pods give to it.
type namedPort struct {
	name     string
	protocol Protocol
}

// chainWriter writes a chain.
type chainWriter struct {
	chain
	lines []string
}

// newChain writes the chain of some policies, which all isolate in the direction.
func newChain(family netstate.Family, direction Direction, policies []*Policy) chain {
	w := chainWriter{chain: chain{family: family, direction: direction, pods: map[string]peer{}, blocks: map[string][]netip.Prefix{}, ports: map[string]namedPort{}}}
	for _, p := range policies {
		w.policies = append(w.policies, p.Name)
		for _, r := range p.rules(direction) {
			w.rule(r)
		}
	}
	slices.Sort(w.lines)
	w.lines = slices.Compact(w.lines)
	if slices.Contains(w.lines, w.allow()) {
		w.lines = []string{w.allow()}
	} else {
		w.lines = append(w.lines, "saddr . daddr @"+selfSet+" "+w.allow(), "counter drop")
	}
	w.rules = strings.Join(w.lines, "\n")
	prefix := "in-"
	if direction == Egress {
		prefix = "eg-"
	}
	w.name = prefix + hash(w.rules)
	return w.chain
}

// allow is the end of a rule that allows. What a pod may send has still to be judged where it arrives.
func (w *chainWriter) allow() string {
	if w.direction == Egress {
		return "return"
	}
	return "accept"
}

// rule writes a line for each peer and port.
func (w *chainWriter) rule(r rule) {
	for _, peer := range w.peers(r) {
		for _, port := range w.portClauses(r) {
			w.lines = append(w.lines, strings.TrimLeft(peer+port+w.allow(), " "))
		}
	}
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
	for _, p := range r.peers {
		if p.nobody() {
			continue
		}
		if p.pods != nil {
			name := "pods-" + hash(p.String())
			w.pods[name] = p
			clauses = append(clauses, field+"@"+name+" ")
			continue
		}
		if clause, ok := w.block(p); ok && clause == "" {
			return []string{""}
		} else if ok {
			clauses = append(clauses, field+clause+" ")
		}
	}
	return clauses
}

// nobody reports whether no pod can be the peer, as where a selector cannot be read.
func (p peer) nobody() bool {
	return p.pods != nil && (labels.MatchesNothing(p.pods) || p.namespaces != nil && labels.MatchesNothing(p.namespaces))
}

// block is the range, or the set of what the exceptions leave of it; empty: all addresses. It is not ok if that is nothing,
// or of the other family.
func (w *chainWriter) block(p peer) (clause string, ok bool) {
	if netstate.FamilyOf(p.block.Addr()) != w.family {
		return "", false
	}
	parts := subtract(p.block, p.except)
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

// subtract returns the part of a range that is in none of the exceptions, as disjoint ranges in order.
func subtract(block netip.Prefix, except []netip.Prefix) []netip.Prefix {
	for _, x := range except {
		switch {
		case x.Bits() <= block.Bits() && x.Contains(block.Addr()):
			return nil
		case block.Overlaps(x):
			low, high := halves(block)
			return append(subtract(low, except), subtract(high, except)...)
		}
	}
	return []netip.Prefix{block}
}

// halves returns the two halves of a range of more than one address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	addr := p.Addr().AsSlice()
	addr[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
	top, _ := netip.AddrFromSlice(addr)
	return netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(top, bits)
}

// hash is 128 bits of SHA-256, in hex.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// objects returns the chain and its sets. The address ranges are complete; the others are the pods', which elements
// returns.
func (c chain) objects() (all []netstate.Object) {
	all = append(all, netstate.Filter{Family: c.family, Name: c.name, Rules: c.rules})
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
