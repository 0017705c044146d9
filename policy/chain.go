package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/netstate"
)

// chain is the rules of one family by which the pods to which some policies apply are judged in one direction, and the
// sets that they look into. Its name is made of its content: a chain is never rewritten, a changed one is another
// chain.
type chain struct {
	family    netstate.Family
	direction Direction
	name      string
	parts     map[string]part        // the chain, and what it goes to, by name
	pods      map[string][]peer      // sets of the addresses of pods that are any of the peers
	blocks    map[string][]addrRange // sets of address ranges
	spans     map[string][]portRange // sets of port numbers
	ports     map[string][]namedPort // sets of the pods' ports that have any of the names
}

// part is one chain of the kernel's.
type part struct {
	rules    string
	policies []string // whose rules these are
}

// chainWriter writes a chain.
type chainWriter struct {
	chain
	apart bool // no other policies with the same rules have the chain
}

func newChainWriter(family netstate.Family, direction Direction) chainWriter {
	return chainWriter{chain: chain{family: family, direction: direction, parts: map[string]part{}, pods: map[string][]peer{},
		blocks: map[string][]addrRange{}, spans: map[string][]portRange{}, ports: map[string][]namedPort{}}}
}

// newChain writes the chain of the policies that apply to some pods. The rules of the Admin tier are a chain of their
// own, which goes to that of the others with what no rule decides about, or one passes on. With apart it counts for these policies
// alone.
func newChain(family netstate.Family, direction Direction, a Applying, apart bool) chain {
	w := newChainWriter(family, direction)
	w.apart = apart
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
	content := rules
	if w.apart {
		content += fmt.Sprintf("\n%q", policies)
	}
	w.name = prefix + hash(content)
	w.parts[w.name] = part{rules, policies}
	return w.name
}

// isolation returns the rules of NetworkPolicies that isolate: what none allows is dropped, and everything where one is left
// out.
func (w *chainWriter) isolation(policies []*Policy) (lines []string) {
	if slices.ContainsFunc(policies, func(p *Policy) bool { return p.LeftOut }) {
		return []string{w.self(), "counter drop"}
	}
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

// lines returns what matches the packets of a rule: one line for each pair of the few conditions that its peers and its
// ports are, however many these are.
func (w *chainWriter) lines(r rule, end string) (lines []string) {
	peers := w.peers(r)
	if len(peers) == 0 {
		return nil
	}
	ports := w.portClauses(r)
	for _, peer := range peers {
		for _, port := range ports {
			lines = append(lines, strings.TrimLeft(peer+port+end, " "))
		}
	}
	return lines
}

// mostSets is how many sets of pods a rule looks into. A set of one selector is shared by all rules that have it. A rule
// with more selectors has a set of its own of all their pods: each pod is in it once, and the rule is one line.
const mostSets = 4

// peers are conditions of the peer's address, each with a space at its end: at most mostSets and one. None at all is the
// empty one.
func (w *chainWriter) peers(r rule) (clauses []string) {
	if r.anyPeer {
		return []string{""}
	}
	field := "saddr "
	if w.direction == Egress {
		field = "daddr "
	}
	var ranges []addrRange
	selected := map[string]peer{}
	for _, p := range r.peers {
		switch {
		case p.nobody():
		case p.pods == nil:
			ranges = append(ranges, p.ranges...)
		default:
			selected[p.String()] = p
		}
	}
	for _, set := range w.podSets(selected) {
		clauses = append(clauses, field+"@"+set+" ")
	}
	if clause, ok := w.block(union(ranges)); ok && clause == "" {
		return []string{""}
	} else if ok {
		clauses = append(clauses, field+clause+" ")
	}
	return clauses
}

// podSets returns the names of the sets of the pods that peers are, which are given by what they are called.
func (w *chainWriter) podSets(peers map[string]peer) (sets []string) {
	texts := slices.Sorted(maps.Keys(peers))
	each := 1
	if len(texts) > mostSets {
		each = len(texts)
	}
	for some := range slices.Chunk(texts, each) {
		set := "pods-" + hash(fmt.Sprintf("%q", some))
		w.pods[set] = nil
		for _, text := range some {
			w.pods[set] = append(w.pods[set], peers[text])
		}
		sets = append(sets, set)
	}
	return sets
}

// nobody reports whether no pod can be the peer, as where a selector cannot be read.
func (p peer) nobody() bool {
	return p.pods != nil && (labels.MatchesNothing(p.pods) || p.namespaces != nil && labels.MatchesNothing(p.namespaces))
}

// block is the range, or the set of the ranges, of the family; empty: all addresses. It is not ok if there is none.
func (w *chainWriter) block(ranges []addrRange) (clause string, ok bool) {
	var parts []addrRange
	for _, r := range ranges {
		if netstate.FamilyOf(r.first) == w.family {
			parts = append(parts, r)
		}
	}
	if len(parts) == 0 {
		return "", false
	}
	if one := netstate.Range("", parts[0].first, parts[0].last); len(parts) == 1 && !one.Last.IsValid() {
		if one.Prefix.Bits() == 0 {
			return "", true
		}
		return one.Prefix.String(), true
	}
	name := "block-" + hash(fmt.Sprint(parts))
	w.blocks[name] = parts
	return "@" + name, true
}

// protocolNumbers are IANA's.
var protocolNumbers = map[Protocol]uint8{TCP: 6, UDP: 17, SCTP: 132}

// hash is 128 bits of SHA-256, in hex.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// objects returns the chain, those that it goes to, and their sets. Those of address ranges and port numbers are complete;
// what is in the others is the pods', and elements returns it.
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
			all = append(all, netstate.Range(name, p.first, p.last))
		}
	}
	for name, spans := range c.spans {
		all = append(all, netstate.Set{Family: c.family, Name: name, Type: netstate.PortRanges})
		for _, s := range spans {
			all = append(all, netstate.Element{Set: name, Prefix: c.family.All(), Port: s.first, LastPort: s.last})
		}
	}
	return all
}
