package doctor

import (
	"slices"

	"github.com/twill-net/twill/doctor/locate"
)

// isolate returns what the node's rules about network policies do with connections from one end to the other, whatever
// their protocols and ports.
func (v visit) isolate(s Step) Step {
	d := v.denied()
	switch {
	case v.flow.Reply || len(v.Policies.Tables) == 0:
		return s
	case d == nil:
		if s.Entry = "everything passes"; v.Policies.Audit {
			s.Entry += ": policies are only audited"
		}
		return s
	}
	c := catalogue[d.Reason.kind()]
	s.Denied, s.Entry, s.Partial = d, d.Why, len(d.Passes) > 0
	s.Finding, s.Verdict, s.Fix = c.ID, c.Title, d.finding().Fix
	if s.Partial {
		s.Verdict = "some packets: " + s.Verdict
	}
	return s
}

// denied returns what the node's rules about network policies deny of the flow, nil if everything passes.
func (v visit) denied() *Denial {
	j := NewJudges(v.Facts)
	for _, n := range j.nodes {
		for _, verdict := range n.judge(v.flow.Src, v.flow.Dst) {
			if !verdict.All() {
				d := n.denial(locate.Flow{Src: v.flow.Src, Dst: v.flow.Dst}, verdict)
				j.explain(&d)
				return &d
			}
		}
	}
	return nil
}

// excuse takes back losses for which rules about network policies are the reason: each node has sent ICMP to the other, and
// followed it no further than its own end. Of connections in the other direction nobody asked.
func (t *Trace) excuse(near, far Trace) {
	there := slices.IndexFunc(far.Forward, func(s Step) bool { return s.Denied != nil })
	if there >= 0 && near.losesSomewhere() {
		t.Probes.Lost, t.Probes.Denied = t.Probes.Lost-near.Probes.Lost, t.Probes.Denied+near.Probes.Lost
		near.Lost = []Finding{far.Forward[there].Denied.finding()}
	}
	if (near.Reverse != nil || far.Reverse != nil) && far.losesSomewhere() {
		lost := far.Probes.Lost + far.Probes.Denied
		t.Probes.Sent, t.Probes.Lost = t.Probes.Sent-lost, t.Probes.Lost-far.Probes.Lost
		t.Probes.Denied -= far.Probes.Denied
		far.Lost = nil
	}
	t.Lost = slices.Concat(near.Lost, far.Lost)
}

// losesSomewhere reports whether probes were lost that rules about policies can have dropped: ICMP, and nothing else is
// known to lose them.
func (t Trace) losesSomewhere() bool {
	return t.Probes.OnlyICMP && t.Probes.Lost+t.Probes.Denied > 0 && !slices.ContainsFunc(t.Lost, func(f Finding) bool {
		return f.kind() != packetLostNear && f.kind() != policyDenied
	})
}
