package agent

import (
	"slices"

	"github.com/twill-net/twill/subnet"
)

// claimOrder keeps who published first what only one node can have, such as a VTEP's MAC address.
// backend.Claims decides by it who of several has a right to it.
type claimOrder struct {
	of       func(subnet.Stack) []string // what a stack claims, of a backend.Claimer, else nil
	nodes    map[string]int              // how many nodes claim something
	disputes int                         // how many claims more than one node has
}

// claimed is what a node claims, and the first snapshot in which it did.
type claimed struct {
	what  string
	round int
}

// publish notes what n claims with this lease. What a node that is gone claimed stays its own until
// it is forgotten: its record may come back, and somebody else may copy it meanwhile.
func (c *claimOrder) publish(n *peer, lease subnet.Lease, round int) {
	if c.of == nil || lease.Node == "" {
		return
	}
	before := n.claims
	n.claims = nil
	var all []string
	for _, stack := range lease.Stacks {
		all = append(all, c.of(stack)...)
	}
	for _, what := range all {
		is := func(s claimed) bool { return s.what == what }
		if slices.ContainsFunc(n.claims, is) {
			continue
		}
		if i := slices.IndexFunc(before, is); i >= 0 {
			n.claims, before = append(n.claims, before[i]), slices.Delete(before, i, i+1)
			continue
		}
		n.claims = append(n.claims, claimed{what, round})
		if c.nodes[what]++; c.nodes[what] == 2 {
			c.disputes++
		}
	}
	c.retract(before)
}

// retract ends claims.
func (c *claimOrder) retract(claims []claimed) {
	for _, s := range claims {
		switch c.nodes[s.what]--; c.nodes[s.what] {
		case 1:
			c.disputes--
		case 0:
			delete(c.nodes, s.what)
		}
	}
}

// disputed reports whether another node claims the same as n.
func (c *claimOrder) disputed(n *peer) bool {
	return slices.ContainsFunc(n.claims, func(s claimed) bool { return c.nodes[s.what] > 1 })
}

// order returns who was first with what more than one node claims.
func (c *claimOrder) order(nodes map[string]*peer) map[subnet.Claim]int {
	if c.disputes == 0 {
		return nil
	}
	order := map[subnet.Claim]int{}
	for name, n := range nodes {
		for _, s := range n.claims {
			if c.nodes[s.what] > 1 {
				order[subnet.Claim{Node: name, What: s.what}] = s.round
			}
		}
	}
	return order
}
