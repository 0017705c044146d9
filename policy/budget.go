package policy

import (
	"maps"
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

// DefaultBudget is what Documentation/benchmarks.md has the costs of.
var DefaultBudget = Budget{Namespace: 100_000, Node: 500_000}

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
