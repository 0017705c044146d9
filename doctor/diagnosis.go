package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Schema is the version of the JSON that this package writes. It grows when a field changes its meaning or goes.
const Schema = 1

// Diagnosis is what the doctor finds on one node.
type Diagnosis struct {
	Schema   int       `json:"schema"`
	Node     string    `json:"node"`
	Backend  string    `json:"backend"`
	Subnets  []string  `json:"subnets"`
	Peers    int       `json:"peers"`
	Took     float64   `json:"tookSeconds"`
	Answered int       `json:"answered"` // peers that answered packets of the node itself
	Probed   bool      `json:"probed"`   // packets were sent between pods
	Findings []Finding `json:"findings"` // the likeliest cause first
	Unread   []string  `json:"unread"`   // what could not be looked at, and why
	// Notes are what is to be known of the way to the outside, and is no fault.
	Notes []string `json:"notes,omitempty"`
	// Policies says who enforces network policies; nil: nobody does, or is to.
	Policies *PolicyState `json:"policies,omitempty"`

	lost bool // probes are lost, and that is said elsewhere
}

// Diagnose judges the facts, which took some time to gather.
func Diagnose(f Facts, took time.Duration) Diagnosis {
	local := f.Lease.Snapshot.Local
	d := Diagnosis{Schema: Schema, Node: f.Node, Backend: local.Backend, Subnets: []string{},
		Peers: len(f.Lease.Snapshot.Peers), Took: took.Seconds(),
		Answered: f.answered(),
		Findings: append([]Finding{}, Check(f)...), Unread: append([]string{}, f.Unread...),
		Policies: f.policyState()}
	for i := range d.Findings {
		d.Findings[i].Place = f.Node
	}
	for _, s := range local.Stacks {
		d.Subnets = append(d.Subnets, s.Subnet.String())
	}
	return d
}

// answered returns how many peers answered through the path of pods, also to packets of the full size.
func (f Facts) answered() int {
	nodes := map[string]bool{}
	for _, p := range f.Probes {
		if p.Kind == ProbeLarge && p.OK {
			nodes[p.Node] = true
		}
	}
	return len(nodes)
}

// Failed reports whether anything is wrong.
func (d Diagnosis) Failed() bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Severity != Intended })
}

// WriteJSON writes the diagnosis for programs.
func (d Diagnosis) WriteJSON(w io.Writer) error { return writeJSON(w, d) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// maxInFull is how many findings are shown in full; the others, which are likely to be consequences, have a line each.
const maxInFull = 3

// WriteText writes the diagnosis for people: one screen.
func (d Diagnosis) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s: %s, %s, %d peers; looked at in %.2f s\n", cmp.Or(d.Node, "?"),
		cmp.Or(d.Backend, "no lease"), cmp.Or(strings.Join(d.Subnets, " "), "no subnet"), d.Peers, d.Took)
	for i, f := range d.Findings {
		if i < maxInFull {
			f.write(&b, i == 0 && f.Severity != Intended)
			continue
		}
		if i == maxInFull {
			fmt.Fprintf(&b, "\nalso, and perhaps because of these:\n")
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", f.ID, f.Title, f.evidence())
	}
	switch {
	case d.Failed():
	case d.Probed:
		fmt.Fprintln(&b, "✓ nothing is wrong here, and packets came back")
	case d.lost:
		fmt.Fprintln(&b, "? nothing else is seen to be wrong on this node")
	case d.Answered > 0:
		fmt.Fprintf(&b, "✓ nothing is wrong here, and %s; packets between pods: twillctl doctor --probe\n",
			plural(d.Answered, "peer answers", "peers answer"))
	default:
		fmt.Fprintln(&b, "? nothing is wrong that can be seen without a probe: run twillctl doctor --probe")
	}
	for _, n := range d.Notes {
		fmt.Fprintln(&b, "?", n)
	}
	for _, u := range d.Unread {
		fmt.Fprintln(&b, "? not looked at:", u)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Finding) write(b *strings.Builder, isFirst bool) {
	mark, first := "✗", ""
	switch f.Severity {
	case Risk:
		mark = "!"
	case Intended:
		mark = "–"
	}
	if isFirst {
		first = "  ← most likely the cause"
	}
	fmt.Fprintf(b, "\n%s %s: %s%s\n", mark, f.ID, f.Title, first)
	about := f.Object
	if f.Count > 1 {
		about += fmt.Sprintf(" and %d more", f.Count-1)
	}
	t := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	for _, line := range [][2]string{{"place", f.Place}, {"about", about}, {"expected", f.Expected}, {"actual", f.Actual}, {"hurts", f.Why},
		{"fix", f.Fix}, {"more", f.Page}} {
		if line[1] != "" {
			fmt.Fprintf(t, "    %s\t%s\n", line[0], line[1])
		}
	}
	t.Flush()
	for _, m := range f.More {
		fmt.Fprintln(b, "      and", m)
	}
}
