package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Schema is the version of Report's JSON: a number that grows when a field changes its meaning or goes.
const Schema = 1

// Report is what the doctor says of one node. Text and JSON are renderings of it.
type Report struct {
	Schema   int       `json:"schema"`
	Node     string    `json:"node"`
	Backend  string    `json:"backend"`
	Subnets  []string  `json:"subnets"`
	Peers    int       `json:"peers"`
	Took     float64   `json:"tookSeconds"`
	Findings []Finding `json:"findings"` // the likeliest cause first
	Unread   []string  `json:"unread"`   // what could not be looked at, and why
}

// NewReport judges the facts.
func NewReport(f Facts, took time.Duration) Report {
	local := f.Lease.Snapshot.Local
	r := Report{Schema: Schema, Node: f.Node, Backend: local.Backend, Peers: len(f.Lease.Snapshot.Peers), Took: took.Seconds(),
		Subnets: []string{}, Findings: Check(f), Unread: append([]string{}, f.Unread...)}
	for _, s := range local.Stacks {
		r.Subnets = append(r.Subnets, s.Subnet.String())
	}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	return r
}

// WriteJSON renders the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// mostInFull is how many findings are shown with all they say; the others, which are likely to be consequences, have
// a line each.
const mostInFull = 3

// WriteText renders the report for people: one screen.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s: %s, %s, %d peers; looked at in %.2f s\n", or(r.Node, "?"), or(r.Backend, "no lease"),
		or(strings.Join(r.Subnets, " "), "no subnet"), r.Peers, r.Took)
	for i, f := range r.Findings {
		if i < mostInFull {
			f.write(&b, i)
			continue
		}
		if i == mostInFull {
			fmt.Fprintf(&b, "\nalso, and perhaps because of these:\n")
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", f.ID, f.Title, f.line())
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(&b, "✓ nothing is wrong here. What cannot be seen from this node (a filter on the way, a peer) shows with --probe.")
	}
	for _, u := range r.Unread {
		fmt.Fprintln(&b, "? not looked at:", u)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Finding) write(b *strings.Builder, i int) {
	mark := "✗"
	if f.Severity == Risk {
		mark = "!"
	}
	first := ""
	if i == 0 {
		first = "  ← most likely the cause"
	}
	fmt.Fprintf(b, "\n%s %s: %s%s\n", mark, f.ID, f.Title, first)
	t := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	about := f.Object
	if f.Count > 1 {
		about += fmt.Sprintf(" and %d more", f.Count-1)
	}
	for _, line := range [][2]string{{"about", about}, {"expected", f.Expected}, {"actual", f.Actual}, {"hurts", f.Why}, {"fix", f.Fix}, {"more", f.Page}} {
		if line[1] != "" {
			fmt.Fprintf(t, "    %s\t%s\n", line[0], line[1])
		}
	}
	t.Flush()
	for _, m := range f.More {
		fmt.Fprintln(b, "      and", m)
	}
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
