package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// audited is what policies would have denied on a node that audits them, since they changed.
type audited struct {
	Node   string   `json:"node"`
	Denied []denied `json:"denied"` // the most packets first
}

// denied are packets of both families.
type denied struct {
	Direction string `json:"direction"`
	Policies  string `json:"policies"`         // separated by commas
	Frames    bool   `json:"frames,omitempty"` // not for the sake of policies: a pod may not send them
	Packets   uint64 `json:"packets"`
}

// newAudited returns what a node says; nil if it does not audit.
func newAudited(node string, s *doctor.PolicyState) *audited {
	if s == nil || !s.Audit {
		return nil
	}
	a := &audited{Node: node, Denied: []denied{}}
	sums := map[denied]uint64{}
	for _, d := range s.Audited {
		sums[denied{Direction: d.Direction, Policies: d.Policies, Frames: d.Family == netstate.Ethernet.String()}] += d.Packets
	}
	for d, n := range sums {
		d.Packets = n
		a.Denied = append(a.Denied, d)
	}
	slices.SortFunc(a.Denied, func(a, b denied) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Policies, b.Policies), cmp.Compare(a.Direction, b.Direction))
	})
	return a
}

// of leaves only what the policies of a pod deny, which are those of each direction and tier.
func (a *audited) of(rules policy.Rules, pod *policy.Pod) {
	is := map[denied]bool{}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		applying := rules.Applying(d, policy.Endpoint{Pod: pod})
		var isolating, admin, baseline []string
		for _, p := range applying.Isolating {
			isolating = append(isolating, p.Name)
		}
		for _, p := range applying.Admin {
			admin = append(admin, p.Name)
		}
		for _, p := range applying.Baseline {
			baseline = append(baseline, p.Name)
		}
		for _, names := range [][]string{isolating, admin, baseline} {
			is[denied{Direction: strings.ToLower(string(d)), Policies: policy.Names(names)}] = len(names) > 0
		}
	}
	a.Denied = slices.DeleteFunc(a.Denied, func(d denied) bool {
		d.Packets = 0
		return !is[d]
	})
}

// by says what denies.
func (d denied) by() string {
	switch {
	case d.Frames:
		return "no policy: frames that their pods may not send"
	case d.Policies == "":
		return "no policy: no pod is known to have the address"
	}
	return d.Policies
}

// lines are a line for each, below a headline.
func (a *audited) lines() string {
	if len(a.Denied) == 0 {
		return fmt.Sprintf("  audit: nothing is enforced on %s; these policies would have denied nothing there since they changed\n", a.Node)
	}
	text := fmt.Sprintf("  audit: nothing is enforced on %s; these policies would have denied there since they changed, of all pods that have them\n", a.Node)
	for _, d := range a.Denied {
		text += fmt.Sprintf("    %s, %s: %d packets\n", d.Direction, d.by(), d.Packets)
	}
	return text
}

// audits is what all nodes do with policies.
type audits struct {
	Nodes  []nodeAudit `json:"nodes"`
	Silent []string    `json:"silent,omitempty"` // nodes that could not be asked, each with the reason
}

// nodeAudit is what a node does with policies.
type nodeAudit struct {
	audited

	Policies string `json:"policies"` // as twillctl status has it: enforced, audit, …
}

// showAudits says what all nodes do with policies, and what has passed where they are audited.
func (p *policies) showAudits(ctx context.Context, w io.Writer) error {
	report, err := p.cluster.Target().Status(ctx)
	if err != nil {
		return err
	}
	all := audits{Silent: report.Silent, Nodes: []nodeAudit{}}
	for _, n := range report.Nodes {
		one := nodeAudit{audited{Node: n.Node, Denied: []denied{}}, n.Policies.String()}
		if a := newAudited(n.Node, n.Policies); a != nil {
			one.audited = *a
		}
		all.Nodes = append(all.Nodes, one)
	}
	return render(w, p.output, all)
}

// Failed reports whether a node could not be asked.
func (a audits) Failed() bool { return len(a.Silent) > 0 }

// WriteJSON writes it for programs.
func (a audits) WriteJSON(w io.Writer) error { return writeIndented(w, a) }

// WriteText writes a line for each node and what was denied there.
func (a audits) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tPOLICIES\tPACKETS\tDIRECTION\tWOULD BE DENIED BY")
	for _, n := range a.Nodes {
		if len(n.Denied) == 0 {
			fmt.Fprintf(t, "%s\t%s\t–\t–\t–\n", n.Node, n.Policies)
		}
		for _, d := range n.Denied {
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", n.Node, n.Policies, d.Packets, cmp.Or(d.Direction, "both"), d.by())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range a.Silent {
		if _, err := fmt.Fprintln(w, "✗", line); err != nil {
			return err
		}
	}
	return nil
}
