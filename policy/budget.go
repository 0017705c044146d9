package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Budget bounds what policies cost a node: the rules of each of their chains, and the elements of their sets once selectors
// are expanded, in both families. A set counts once in a namespace, however many of its policies have it.
//
// NetworkPolicies are counted from the oldest on. One that is beyond the budget is left out: the pods that it selects are
// closed, and the older ones stay as they are. A policy whose sets are in force does not pay for pods of other namespaces
// that came since, below the limit of the node. A ClusterNetworkPolicy that is beyond it closes nothing: its last version
// stays.
//
// Keep one Budget for all tables of a node: it remembers what is in force.
type Budget struct {
	Namespace int // of the NetworkPolicies of each namespace, and of each ClusterNetworkPolicy
	Node      int // of the NetworkPolicies of all namespaces

	sets    map[paid]bool    // the sets of pods of the last table
	adopted map[setName]bool // those of an agent before this one; nil: there was a table since
	kept    map[string]ClusterNetworkPolicy
}

// DefaultBudget is what Documentation/results/policies.md has the costs of.
var DefaultBudget = Budget{Namespace: 200_000, Node: 1_000_000}

// setName is a set of a family.
type setName struct {
	family netstate.Family
	name   string
}

// paid is a set of which a namespace pays the elements.
type paid struct {
	namespace string
	setName
}

// Spent is what a Budget was spent on.
type Spent struct {
	Namespaces map[string]int // by NetworkPolicies in force; an upper bound where it is below half of the budget
	Node       int            // likewise
	Cluster    map[string]int // by ClusterNetworkPolicies
	Half       []Excess       // the NetworkPolicies with which namespaces pass half of the budget
	LeftOut    []Excess       // NetworkPolicies
	Refused    []Excess       // ClusterNetworkPolicies
}

// Excess is a policy beyond a limit.
type Excess struct {
	Kind, Policy, UID string
	Cost, Limit       int  // of all that counts until then, and what it may be
	Node              bool // it is the node's limit
}

// Adopt notes the sets that the kernel has from an agent before this one, so that its policies stay in force.
func (b *Budget) Adopt(have netstate.State) {
	b.adopted = map[setName]bool{}
	for _, o := range have {
		if s, ok := o.(netstate.Set); ok {
			b.adopted[setName{s.Family, s.Name}] = true
		}
	}
}

// has reports whether a namespace has paid for a set, so that it is in force.
func (b *Budget) has(p paid) bool { return b.sets[p] || b.adopted[p.setName] }

// spend leaves policies out of the table's rules that are beyond the budget. The ClusterNetworkPolicies that it returns are
// those of the snapshot, with the last versions of those that are refused.
func (b *Budget) spend(t *Table, s Snapshot) (cluster []ClusterNetworkPolicy) {
	a := newAccount(b, t)
	a.pay(false)
	if a.near() { // by upper bounds; count exactly
		a = newAccount(b, t)
		a.pay(true)
	}
	cluster = a.payCluster(s.ClusterPolicies)
	b.sets, b.adopted = a.inForce(), nil
	t.spent, t.room = a.Spent, a.room()
	return cluster
}

// account is what is counted for one table.
type account struct {
	Spent
	limits  *Budget
	table   *Table
	pods    map[string][]Endpoint // all that have addresses, by namespace
	ledgers map[string]*ledger
	sets    map[setName]bool // of the whole node
	exact   bool
	sizes   map[paid]int // memory of size and of all
}

// ledger is what is counted for a namespace.
type ledger struct {
	classes  map[side][]class
	sets     map[setName]bool
	own, all int // all, and what of it is no element for another namespace's pod in a set that is in force
}

// side is what a chain is for.
type side struct {
	family    netstate.Family
	direction Direction
}

// class is pods of this node that the same policies isolate, so that they have one chain.
type class struct {
	pods   []Endpoint
	rules  int  // of the chain; 0: there is none
	closed bool // a policy that is left out selects them
}

func newAccount(b *Budget, t *Table) *account {
	a := &account{limits: b, table: t, pods: map[string][]Endpoint{}, ledgers: map[string]*ledger{}, sets: map[setName]bool{},
		sizes: map[paid]int{}, Spent: Spent{Namespaces: map[string]int{}, Cluster: map[string]int{}}}
	for addr := range t.owners.claims {
		p := t.owners.of(addr)
		if p == nil {
			continue
		}
		e := Endpoint{Addr: addr, Pod: p}
		a.pods[p.Namespace] = append(a.pods[p.Namespace], e)
		if !t.local(p) {
			continue
		}
		l := a.ledgers[p.Namespace]
		if l == nil {
			l = &ledger{classes: map[side][]class{}, sets: map[setName]bool{}}
			a.ledgers[p.Namespace] = l
		}
		for _, d := range directions {
			at := side{netstate.FamilyOf(addr), d}
			if l.classes[at] == nil {
				l.classes[at] = []class{{}}
			}
			l.classes[at][0].pods = append(l.classes[at][0].pods, e)
		}
	}
	return a
}

// pay counts the NetworkPolicies, from the oldest on. Without exact, sets count as if selectors selected all pods of the
// namespaces that they may.
func (a *account) pay(exact bool) {
	a.exact = exact
	var all []*Policy
	for namespace := range a.ledgers {
		all = append(all, a.table.rules.byNamespace[namespace]...)
	}
	slices.SortFunc(all, func(p, o *Policy) int { return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Name, o.Name)) })
	for _, p := range all {
		p.LeftOut = false
		a.payOne(p, a.ledgers[p.namespace])
	}
	for namespace, l := range a.ledgers {
		a.Namespaces[namespace] = l.all
	}
}

// payOne counts a policy, or leaves it out.
func (a *account) payOne(p *Policy, l *ledger) {
	classes, rules, sets := a.classes(p, l)
	if len(classes) == 0 {
		return // it selects no pod of the node
	}
	own, all, node, known := l.own+rules, l.all+rules, a.Node+rules, true
	for set, s := range sets {
		has := a.limits.has(paid{p.namespace, set})
		if !l.sets[set] {
			known = known && has
			n := a.size(set, s, "")
			if all += n; has {
				n = a.size(set, s, p.namespace)
			}
			own += n
		}
		if !a.sets[set] {
			node += a.size(set, s, "")
		}
		if min(own, all) > a.limits.Namespace || node > a.limits.Node {
			break // it is beyond a limit whatever the others have
		}
	}
	counts := all
	if known {
		counts = own
	}
	before := l.all
	switch {
	case counts > a.limits.Namespace:
		p.LeftOut = true
		a.LeftOut = append(a.LeftOut, Excess{NetworkKind, p.Name, p.UID, counts, a.limits.Namespace, false})
	case node > a.limits.Node:
		p.LeftOut = true
		a.LeftOut = append(a.LeftOut, Excess{NetworkKind, p.Name, p.UID, node, a.limits.Node, true})
	default:
		l.own, l.all, a.Node = own, all, node
		for set := range sets {
			l.sets[set], a.sets[set] = true, true
		}
		if half := a.limits.Namespace / 2; before <= half && all > half {
			a.Half = append(a.Half, Excess{NetworkKind, p.Name, p.UID, all, a.limits.Namespace, false})
		}
	}
	for at, split := range classes {
		for i, c := range split { // of a class a policy selects all pods or none
			split[i].closed = c.closed || p.LeftOut && p.subject.Matches(c.pods[0].Pod.Labels)
		}
		l.classes[at] = split
	}
}

// classes returns the classes of pods that there are once a policy isolates some, how many rules chains have more then, and the
// sets that these look into.
func (a *account) classes(p *Policy, l *ledger) (all map[side][]class, rules int, sets map[setName]contents) {
	all, sets = map[side][]class{}, map[setName]contents{}
	for at, classes := range l.classes {
		if !p.isolates(at.direction) {
			continue
		}
		lines := -1
		var split []class
		for _, c := range classes {
			var with, without class
			for _, e := range c.pods {
				to := &without
				if p.subject.Matches(e.Pod.Labels) {
					to = &with
				}
				to.pods = append(to.pods, e)
			}
			if c.closed || len(with.pods) == 0 {
				split = append(split, c)
				continue
			}
			if lines < 0 {
				lines = a.lines(at, p.rules(at.direction), sets)
			}
			if with.rules = c.rules + lines; c.rules == 0 {
				with.rules += 2 // a pod's own packets, and the drop at the end
			}
			if rules += with.rules; len(without.pods) > 0 {
				without.rules = c.rules
				split = append(split, without)
			} else {
				rules -= c.rules
			}
			split = append(split, with)
		}
		if lines >= 0 {
			all[at] = split
		}
	}
	return all, rules, sets
}

// lines returns how many rules a chain has for those of a policy, and adds the sets that they look into.
func (a *account) lines(at side, rules []rule, sets map[setName]contents) int {
	w := newChainWriter(at.family, at.direction)
	lines := map[string]bool{}
	for _, r := range rules {
		for _, line := range w.lines(r, w.allow()) {
			lines[line] = true
		}
	}
	for name, peers := range w.pods {
		sets[setName{at.family, name}] = contents{peers: peers}
	}
	for name, ports := range w.ports {
		sets[setName{at.family, name}] = contents{ports: ports}
	}
	for name, ranges := range w.blocks {
		sets[setName{at.family, name}] = contents{fixed: len(ranges)}
	}
	for name, spans := range w.spans {
		sets[setName{at.family, name}] = contents{fixed: len(spans)}
	}
	return len(lines)
}

// contents are what a set has: elements that are always there, or pods.
type contents struct {
	fixed int
	peers []peer
	ports []namedPort
}

// size returns how many elements a set has for the pods of a namespace; with an empty one for all.
func (a *account) size(set setName, c contents, namespace string) (n int) {
	if c.peers == nil && c.ports == nil {
		return c.fixed
	}
	key := paid{namespace, set}
	if n, known := a.sizes[key]; known {
		return n
	}
	if namespace != "" {
		n = a.count(set.family, c, namespace)
	} else {
		for each := range a.pods {
			n += a.count(set.family, c, each)
		}
	}
	a.sizes[key] = n
	return n
}

// count returns how many elements a set has for the pods of a namespace.
func (a *account) count(family netstate.Family, c contents, namespace string) (n int) {
	g := groups{pods: map[string][]peer{}, ports: map[string][]namedPort{}, byNamespace: map[string][]group{}}
	if c.peers != nil {
		g.pods["pods"] = c.peers
		if len(g.of(namespace)) == 0 {
			return 0
		}
	} else {
		g.ports["ports"] = c.ports
	}
	for _, e := range a.pods[namespace] {
		switch {
		case netstate.FamilyOf(e.Addr) != family:
		case !a.exact && c.peers != nil:
			n++
		default:
			n += len(g.elements(netip.Prefix{}, e.Pod))
		}
	}
	return n
}

// payCluster counts each ClusterNetworkPolicy, its rules once for each class of the pods that it selects, and returns all with
// the last versions of those that are refused.
func (a *account) payCluster(all []ClusterNetworkPolicy) []ClusterNetworkPolicy {
	now, kept := slices.Clone(all), map[string]ClusterNetworkPolicy{}
	compiled := map[string]*ClusterPolicy{}
	for _, p := range slices.Concat(a.table.rules.admin, a.table.rules.baseline) {
		compiled[p.Name] = p
	}
	a.exact, a.sizes = true, map[paid]int{}
	for i, p := range now {
		c := compiled[p.Name]
		if c == nil {
			continue
		}
		cost, known := a.clusterCost(c)
		was, had := a.limits.kept[p.Name]
		if cost > a.limits.Namespace && !(had && reflect.DeepEqual(was.Spec, p.Spec)) && (had || !known) {
			a.Refused = append(a.Refused, Excess{ClusterKind, p.Name, string(p.UID), cost, a.limits.Namespace, false})
			if now[i].Name = ""; had {
				now[i], kept[p.Name] = was, was
			}
			continue
		}
		kept[p.Name], a.Cluster[p.Name] = p, cost
	}
	a.limits.kept = kept
	return slices.DeleteFunc(now, func(p ClusterNetworkPolicy) bool { return p.Name == "" })
}

// clusterCost returns what a ClusterNetworkPolicy costs, and whether all of its sets of pods are in force.
func (a *account) clusterCost(p *ClusterPolicy) (cost int, known bool) {
	sets := map[setName]contents{}
	for _, l := range a.ledgers {
		for at, classes := range l.classes {
			rules := p.rules(at.direction)
			n := 0
			for _, c := range classes {
				if len(rules) > 0 && slices.ContainsFunc(c.pods, p.subject.matches) {
					n++
				}
			}
			if n > 0 {
				all := make([]rule, len(rules))
				for i, r := range rules {
					all[i] = r.rule
				}
				cost += n * a.lines(at, all, sets)
			}
		}
	}
	known = true
	for set, c := range sets {
		cost += a.size(set, c, "")
		known = known && (c.peers == nil && c.ports == nil || a.limits.adopted[set])
		if cost > a.limits.Namespace && !known {
			break
		}
	}
	return cost, known
}

// inForce returns the sets of pods that namespaces have paid for.
func (a *account) inForce() map[paid]bool {
	all := map[paid]bool{}
	for namespace, l := range a.ledgers {
		for set := range l.sets {
			all[paid{namespace, set}] = true
		}
	}
	return all
}

// near reports whether anything is near a limit, or beyond one.
func (a *account) near() bool {
	return len(a.LeftOut)+len(a.Half) > 0 || a.Node > a.limits.Node/2
}

// room returns how many elements the table may get until something may pass a limit, or half of one. It is at least a part of
// the budget: whoever is near a limit does not make tables anew with each pod.
func (a *account) room() int {
	room := a.limits.Node
	below := func(n, limit int) {
		for _, limit := range []int{limit / 2, limit} {
			if n <= limit {
				room = min(room, limit-n)
			}
		}
	}
	below(a.Node, a.limits.Node)
	for _, l := range a.ledgers {
		below(l.all, a.limits.Namespace)
		below(l.own, a.limits.Namespace)
	}
	return max(room, a.limits.Namespace/64, 1)
}

// spare takes elements that a plan adds from the room that the table has, and reports whether there was as much.
func (t *Table) spare(plan netstate.Plan) bool {
	if t.site.Budget == nil {
		return true
	}
	for _, c := range plan {
		if _, ok := c.Want.(netstate.Element); ok && c.Was == nil {
			t.room--
		}
		if _, ok := c.Was.(netstate.Element); ok && c.Want == nil {
			t.room++
		}
	}
	return t.room >= 0
}

// Spent returns what the site's Budget was spent on when the table was made; nothing without one.
func (t *Table) Spent() Spent { return t.spent }

// LeaveOut closes the pods that NetworkPolicies select, which are given by namespace/name: they are beyond a node's budget.
func (r Rules) LeaveOut(names []string) {
	for _, all := range r.byNamespace {
		for _, p := range all {
			p.LeftOut = slices.Contains(names, p.Name)
		}
	}
}

// Most returns the part of the budget that the namespace with the most uses.
func Most(spent map[string]int, limit int) float64 {
	most := 0
	for n := range maps.Values(spent) {
		most = max(most, n)
	}
	return float64(most) / float64(limit)
}
