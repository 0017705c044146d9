package policy

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// account is what is counted for one table.
type account struct {
	Spent
	limits  *Budget
	table   *Table
	numbers map[crowd]int         // of addresses
	pods    map[string][]Endpoint // all that have addresses, by namespace; nil: nobody asked for them yet
	ledgers map[string]*ledger
	sets    map[setName]bool // of the whole node
	exact   bool
	sizes   map[paid]int // memory of size and of all
}

// crowd is the pods of a namespace that have addresses of a family.
type crowd struct {
	namespace string
	family    netstate.Family
}

// ledger is what is counted for a namespace.
type ledger struct {
	classes  map[side][]class
	sets     map[setName]bool
	all, own int // what counts, and what of it is no element for another namespace's pod in a set that is in force
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
	a := &account{limits: b, table: t, numbers: map[crowd]int{}, ledgers: map[string]*ledger{}, sets: map[setName]bool{},
		sizes: map[paid]int{}, Spent: Spent{Namespaces: map[string]int{}, Cluster: map[string]int{}}}
	for addr := range t.owners.claims {
		p := t.owners.of(addr)
		if p == nil {
			continue
		}
		a.numbers[crowd{p.Namespace, netstate.FamilyOf(addr)}]++
		if !t.local(p) {
			continue
		}
		e := Endpoint{Addr: addr, Pod: p}
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
				with.rules += copies*2 + 1 // a pod's own packets, and the drop at the end, before which a copy resets
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

// lines returns how many rules a chain and its copies have for those of a policy, and adds the sets that they look into.
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
	return copies * len(lines)
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
		for each := range a.numbers {
			if each.family == set.family {
				n += a.count(set.family, c, each.namespace)
			}
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
	if !a.exact && c.peers != nil {
		return a.numbers[crowd{namespace, family}]
	}
	for _, e := range a.of(namespace) {
		if netstate.FamilyOf(e.Addr) == family {
			n += len(g.elements(netip.Prefix{}, e.Pod))
		}
	}
	return n
}

// of returns the pods of a namespace that have addresses.
func (a *account) of(namespace string) []Endpoint {
	if a.pods == nil {
		a.pods = map[string][]Endpoint{}
		for addr := range a.table.owners.claims {
			if p := a.table.owners.of(addr); p != nil {
				a.pods[p.Namespace] = append(a.pods[p.Namespace], Endpoint{Addr: addr, Pod: p})
			}
		}
	}
	return a.pods[namespace]
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
		isNew := !known
		if had {
			isNew = !reflect.DeepEqual(was.Spec, p.Spec)
		}
		if cost > a.limits.Namespace && isNew {
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
				var all, denies []rule
				for _, r := range rules {
					if all = append(all, r.rule); r.action == Deny {
						denies = append(denies, r.rule) // a copy has a rule more, which resets
					}
				}
				cost += n * (a.lines(at, all, sets) + a.lines(at, denies, sets)/copies)
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
