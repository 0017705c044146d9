package policy

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Denied returns the address of this node's pod if the table's rules drop its connection with another node's pod, by what packets
// of the original direction have, and else the zero Addr. Other connections are not judged: the nodes' rules see each of their
// packets anyway.
func (t *Table) Denied(from, to netip.AddrPort, protocol uint8) netip.Addr {
	local := contain(t.site.Subnets, from.Addr())
	if local == contain(t.site.Subnets, to.Addr()) {
		return netip.Addr{}
	}
	f := Flow{From: t.endpoint(from.Addr()), To: t.endpoint(to.Addr()), Port: to.Port()}
	for name, number := range protocolNumbers {
		if number == protocol {
			f.Protocol = name
		}
	}
	direction, subject, peer := Egress, f.From, f.To
	if !local {
		direction, subject, peer = Ingress, f.To, f.From
	}
	if !contain(t.site.Networks, peer.Addr) || t.local(subject.Pod) && t.rules.side(direction, subject, peer, f).Allowed() {
		return netip.Addr{}
	}
	return subject.Addr
}

func (t *Table) endpoint(a netip.Addr) Endpoint { return Endpoint{Addr: a, Pod: t.owners.of(a)} }

// MayDeny reports whether packets that passed may be dropped once a plan is carried out that leads to this table. Of what is
// only added, pods' addresses can have that effect where a rule denies.
func (t *Table) MayDeny(plan netstate.Plan) bool {
	denies := len(t.rules.admin)+len(t.rules.baseline) > 0
	return slices.ContainsFunc(plan, func(c netstate.Change) bool {
		e, isElement := c.Want.(netstate.Element)
		if was, ok := c.Was.(netstate.Element); ok {
			e = was
		}
		_, isHook := c.Want.(netstate.Hook)
		return e.Dev == "" && (c.Was != nil || isHook || isElement && denies)
	})
}
