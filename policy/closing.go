package policy

import (
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// closedSet has the addresses of isolated pods while the rules that judge their packets are being written.
const closedSet = "closed"

// Closing returns what the tables of some families have while all of State is being written to a node that has no rules: all
// about frames, and hooks that drop whatever an isolated pod of this node sends or gets. Other packets pass. It is small,
// however large the cluster is. It is empty if no pod is isolated, or policies are only audited.
func (t *Table) Closing(families ...netstate.Family) netstate.State {
	closing := netstate.State{}
	if t.site.Audit || len(t.chains) == 0 {
		return closing
	}
	closes := map[netstate.Family]bool{}
	for _, family := range families {
		closes[family] = true
		if family == netstate.Ethernet {
			t.addFrames(closing)
			continue
		}
		rules := slices.Concat(t.marks(), t.links(family), []string{"saddr @" + closedSet + " counter drop", "daddr @" + closedSet + " counter drop"})
		closing.Add(netstate.Set{Family: family, Name: closedSet, Type: netstate.Addresses},
			netstate.Hook{Family: family, Rules: strings.Join(rules, "\n")})
	}
	for _, o := range t.state {
		if e, ok := o.(netstate.Element); ok && e.Set == selfSet && closes[netstate.FamilyOf(e.Prefix.Addr())] {
			e.Set = closedSet
			closing.Add(e)
		}
	}
	return closing
}

// addFrames adds what the table for frames has.
func (t *Table) addFrames(to netstate.State) {
	for _, o := range t.frameTable() {
		to.Add(t.state[o.Key()])
	}
	for name := range t.ports.addrs {
		to.Add(t.portElements(name)...)
	}
}
