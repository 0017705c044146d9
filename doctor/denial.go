package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/isolation"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/policy"
)

// Denial is a connection that a node's rules about network policies do not let pass.
type Denial struct {
	Src       netip.Addr       `json:"src"`
	Dst       netip.Addr       `json:"dst"`
	Protocol  policy.Protocol  `json:"protocol,omitempty"` // ICMP, too; empty: any
	Port      uint16           `json:"port,omitempty"`     // empty: any
	Node      string           `json:"node"`
	Direction policy.Direction `json:"direction"`
	Chain     string           `json:"chain"` // that judges
	Reason    Reason           `json:"reason"`
	Passes    []string         `json:"passes,omitempty"`  // between the two addresses: "TCP 80"
	Blocked   []string         `json:"blocked,omitempty"` // of that
	Pod       string           `json:"pod"`               // whose rules these are: its name, or its address
	Why       string           `json:"why"`               // in a sentence

	blocked isolation.Ports // the first of them
	audit   bool            // the node is to audit, and to deny nothing
}

// Reason is why rules deny a connection.
type Reason string

// The reasons.
const (
	Asked      Reason = "asked"       // policies deny it, as far as they are known
	UnknownPod Reason = "unknown-pod" // no pod is known to have the address
	Outdated   Reason = "outdated"    // policies allow it, and the rules do not
)

// kind returns the finding that it is.
func (r Reason) kind() kind {
	switch r {
	case UnknownPod:
		return policyUnknownPod
	case Outdated:
		return policyOutdated
	}
	return policyDenied
}

// exception says what passes although not everything does.
func (d Denial) exception() (text string) {
	blocked := d.Blocked
	if len(d.Passes) > 0 && !d.passesMost() {
		text = ", only " + strings.Join(d.Passes, ", ")
	} else if len(blocked) > 0 {
		blocked = blocked[1:] // the sentence is about the first
	}
	if len(d.Passes) > 0 && len(blocked) > 0 {
		text += ", and not " + strings.Join(blocked, ", ")
	}
	return text
}

// passesMost reports whether everything passes but for what is blocked.
func (d Denial) passesMost() bool { return slices.Contains(d.Passes, isolation.Ports{}.String()) }

// anyOf is what of all protocols is not allowed.
func (d Denial) anyOf() string {
	switch {
	case d.passesMost():
		return d.blocked.String()
	case len(d.Passes) > 0:
		return "everything"
	}
	return "anything"
}

// text is what is denied.
func (d Denial) text() string {
	what := cmp.Or(string(d.Protocol), d.anyOf())
	if d.Port != 0 {
		what += fmt.Sprintf(" %d", d.Port)
	}
	return fmt.Sprintf("%s from %s to %s", what, d.Src, d.Dst)
}

// Lost is what became of probes that did not come back.
type Lost struct {
	Followed []locate.Loss
	Denied   []Denial
}

// deny adds a denial, unless another kind of probe has shown the same.
func (l *Lost) deny(d Denial) {
	if !slices.ContainsFunc(l.Denied, func(o Denial) bool {
		return o.Src == d.Src && o.Dst == d.Dst && o.Protocol == d.Protocol && o.Direction == d.Direction
	}) {
		l.Denied = append(l.Denied, d)
	}
}

// findings returns them as findings, those that nobody asked for first.
func (l Lost) findings() []Finding {
	all := mergeLosses(l.Followed)
	for _, d := range l.Denied {
		f := d.finding()
		i := slices.IndexFunc(all, func(o Finding) bool { return o.ID == f.ID && o.Place == f.Place && o.Object == f.Object })
		if i < 0 {
			all = append(all, f)
			continue
		}
		all[i].Count++
		if len(all[i].More) < maxShown && d.Why != all[i].Actual && !slices.Contains(all[i].More, d.Why) {
			all[i].More = append(all[i].More, d.Why)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return all
}

// finding returns the denial as a finding about the pod whose rules these are.
func (d Denial) finding() Finding {
	k := d.Reason.kind()
	c := catalogue[k]
	f := Finding{ID: c.ID, Title: c.Title, Place: d.Node, Object: d.Pod + ", " + strings.ToLower(string(d.Direction)),
		Actual: d.Why, Why: c.Why, Fix: c.Fix, Page: k.page(), Severity: c.Severity, Count: 1,
		Likely: c.Severity != Intended}
	if d.Reason == Asked {
		f.Fix = "if it is to pass, let a policy allow it; this shows what they allow: kubectl twill policy " + d.Pod
	}
	return f
}
