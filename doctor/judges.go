package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/twill-net/twill/doctor/isolation"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// Judges say what nodes do with connections for the sake of network policies: by the rules that the kernels have, and why
// by the policies themselves, if they can be read.
type Judges struct {
	nodes    []judge
	policies func() *known // nil: they are not known
}

// judge is one node.
type judge struct {
	node    string
	tables  isolation.Tables
	bridged map[netstate.Family]bool // packets between its own pods go through the rules
	subnets []netip.Prefix
	audit   bool // policies are only audited
}

// known are policies, and whom they are about.
type known struct {
	policy.Snapshot

	rules policy.Rules
}

// NewJudges takes the nodes whose facts are known. If the policies have to be asked for, that is done when they are needed
// first.
func NewJudges(all ...Facts) *Judges {
	j := &Judges{}
	for _, f := range all {
		n := judge{node: f.Node, tables: isolation.New(f.Policies.Tables), audit: f.Policies.Audit, bridged: map[netstate.Family]bool{}}
		for _, family := range netstate.Families {
			n.bridged[family] = f.Sysctls[bridgeFilter(family)] == "1"
		}
		for _, s := range f.Lease.Snapshot.Local.Stacks {
			n.subnets = append(n.subnets, s.Subnet)
		}
		j.nodes = append(j.nodes, n)
	}
	j.policies = sync.OnceValue(func() *known { return readPolicies(all) })
	return j
}

// readPolicies returns what the first node that knows the policies knows.
func readPolicies(all []Facts) *known {
	for _, f := range all {
		p := f.Policies
		switch {
		case p.Snapshot != nil:
		case p.Ask != nil:
			s, err := p.Ask()
			if err != nil {
				continue // then the rules have to do
			}
			p.Snapshot = &s
		default:
			continue
		}
		s := *p.Snapshot
		s.Leases = f.Lease.Snapshot.Leases(f.Lease.Network)
		rules, _ := policy.New(s)
		if said := f.Agent.Policies; said != nil {
			rules.LeaveOut(said.LeftOut)
		}
		return &known{s, rules}
	}
	return nil
}

// Denies reports whether policies deny the connection of a probe, so that it is lost as somebody asked.
func (j *Judges) Denies(f locate.Flow) bool {
	d, ok := j.deny(f)
	return ok && d.Reason == Asked
}

// deny returns why the connection of a probe is denied, if it is.
func (j *Judges) deny(f locate.Flow) (Denial, bool) {
	protocol := policy.Protocol(strings.ToUpper(f.Proto))
	for _, n := range j.nodes {
		for _, v := range n.judge(f.Src, f.Dst) {
			if !v.Allows(protocol, f.Port) {
				d := n.denial(f, v)
				j.explain(&d)
				return d, true
			}
		}
	}
	return Denial{}, false
}

// judge returns what the node's rules say of connections between two addresses.
func (n judge) judge(src, dst netip.Addr) []isolation.Verdict {
	owns := func(a netip.Addr) bool {
		return slices.ContainsFunc(n.subnets, func(s netip.Prefix) bool { return s.Contains(a) })
	}
	if owns(src) && owns(dst) && !n.bridged[netstate.FamilyOf(src)] {
		return nil
	}
	return n.tables.Judge(src, dst)
}

func (n judge) denial(f locate.Flow, v isolation.Verdict) Denial {
	d := Denial{Src: f.Src, Dst: f.Dst, Protocol: policy.Protocol(strings.ToUpper(f.Proto)), Port: f.Port, Node: n.node,
		Direction: v.Direction, Chain: v.Chain, Reason: Asked, Pod: f.Dst.String(), audit: n.audit}
	if v.Direction == policy.Egress {
		d.Pod = f.Src.String()
	}
	if v.Unknown {
		d.Reason = UnknownPod
	}
	d.Passes, d.Blocked = names(v.Allowed), names(v.Denied)
	if len(v.Denied) > 0 {
		d.blocked = v.Denied[0]
	}
	return d
}

// names returns ports for people.
func names(ports []isolation.Ports) (all []string) {
	for _, p := range ports {
		if text := p.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// ofLoss returns the denial that a trace of rules shows, if it was a rule about policies that stopped the packet.
func (j *Judges) ofLoss(l locate.Loss) (Denial, bool) {
	chain := policy.Original(l.By.Chain)
	isEgress := chain == "egress" || strings.HasPrefix(chain, "eg-")
	isIngress := chain == "ingress" || strings.HasPrefix(chain, "in-")
	if l.By.Table != netstate.FilterTable || !isEgress && !isIngress { // other chains drop what is nobody's, or forged
		return Denial{}, false
	}
	if d, ok := j.deny(l.Flow); ok {
		return d, true
	}
	v := isolation.Verdict{Direction: policy.Ingress, Chain: chain, Unknown: !strings.Contains(chain, "-")}
	if isEgress {
		v.Direction = policy.Egress
	}
	d := judge{node: l.Host}.denial(l.Flow, v)
	j.explain(&d)
	return d, true
}

// explain says why, in a sentence.
func (j *Judges) explain(d *Denial) {
	k := j.policies()
	switch {
	case d.Reason == UnknownPod:
		d.Why = fmt.Sprintf("%s is one of %s's addresses, and no pod is known to have it: it may neither send nor receive",
			d.Pod, d.Node)
		if k == nil {
			return
		}
		if e := k.At(netip.MustParseAddr(d.Pod)); e.Pod != nil {
			d.Why = fmt.Sprintf("%s has %s, and the rules of %s do not know it yet: it may neither send nor receive", e, d.Pod,
				d.Node)
			d.Pod = e.String()
		}
	case k == nil:
		d.Why = fmt.Sprintf("the chain %s isolates %s for %s; no rule of it allows %s", d.Chain, d.Pod,
			strings.ToLower(string(d.Direction)), d.text())
	default:
		k.explain(d)
	}
	if d.Protocol == "" {
		d.Why += d.exception()
	}
	if d.audit && d.Reason == Asked {
		d.Reason = Outdated
		d.Why = fmt.Sprintf("the rules of %s deny %s (chain %s), although policies are only audited there", d.Node, d.text(), d.Chain)
	}
}

// explain says it by the policies.
func (k known) explain(d *Denial) {
	f := policy.Flow{From: k.At(d.Src), To: k.At(d.Dst), Protocol: d.Protocol, Port: d.Port}
	switch {
	case d.Protocol == "" && d.passesMost():
		f.Protocol, f.Port = d.blocked.Protocol, d.blocked.First
	case d.Protocol == "":
		f.Protocol = policy.Protocol(d.anyOf())
	}
	v := k.rules.Judge(f)
	egress, ingress := v.Explain(f)
	side, why, end := v.Ingress, ingress, f.To
	if d.Direction == policy.Egress {
		side, why, end = v.Egress, egress, f.From
	}
	d.Why, d.Pod = why, end.String()
	if side.Allowed() {
		d.Reason = Outdated
		d.Why = fmt.Sprintf("the rules of %s deny %s (chain %s), although %s", d.Node, d.text(), d.Chain, why)
	}
}

// Lost separates losses by rules about policies from all others. Denied are the flows of probes that were lost and that
// policies deny; not all of them need to have been followed.
func (j *Judges) Lost(followed []locate.Loss, denied []locate.Flow) (l Lost) {
	for _, loss := range followed {
		if d, ok := j.ofLoss(loss); ok {
			l.deny(d)
		} else {
			l.Followed = append(l.Followed, loss)
		}
	}
	for _, f := range denied {
		if d, ok := j.deny(f); ok {
			l.deny(d)
		}
	}
	return l
}
