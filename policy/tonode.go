package policy

import (
	"slices"

	"github.com/twill-net/twill/netstate"
)

// nodeName is the name of what judges packets of pods that are for their own node: a chain and a map.
const nodeName = "node"

// judgement is the policies to whose chain a map leads from a pod's address.
type judgement struct {
	set       string
	direction Direction
	policies  Applying
}

// judgements returns those of a pod of this node.
func (t *Table) judgements(e Endpoint) []judgement {
	egress := t.rules.Applying(Egress, e)
	all := []judgement{{egressName, Egress, egress}, {ingressName, Ingress, t.rules.Applying(Ingress, e)}}
	if t.judgesNode() {
		egress.Isolating = nil
		all = append(all, judgement{nodeName, Egress, egress})
	}
	return all
}

// judgesNode reports whether policies may be about what pods send to their own node.
func (t *Table) judgesNode() bool {
	return slices.ContainsFunc(slices.Concat(t.rules.admin, t.rules.baseline),
		func(p *ClusterPolicy) bool { return len(p.egress) > 0 })
}

// nodeFrame returns what a family's table has beside the maps' elements for packets that are for the node. While a pod is
// isolated, none of a pod's may have a link-local source, which does not tell whose it is.
func (t *Table) nodeFrame(family netstate.Family) []netstate.Object {
	if !t.judgesNode() {
		return nil
	}
	rules := "ct reply established accept\nct related accept\n"
	if family == netstate.IPv6 {
		rules += "icmpv6 133-137 accept\n"
		if len(t.chains) > 0 {
			rules += "saddr fe80::/10 counter drop\n"
		}
	}
	return []netstate.Object{
		netstate.Set{Family: family, Name: nodeName, Type: netstate.Verdicts},
		netstate.Filter{Family: family, Name: nodeName, Rules: rules + t.mapped(family, nodeName, "saddr")},
		netstate.Hook{Family: family, Local: true, Rules: "iifname " + t.site.Bridge + " goto " + nodeName},
	}
}
