package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Connectivity is the result of a connectivity test: who reached whom, and what loses what is lost.
type Connectivity struct {
	Schema int       `json:"schema"`
	Cells  []Cell    `json:"cells"`
	Probes Probes    `json:"probes"`
	Lost   []Finding `json:"lost"`
	Silent []string  `json:"silent,omitempty"` // nodes that could not be asked, and why
}

// Cell counts the probes of one kind in one direction between two nodes, or from a node to something else.
type Cell struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Family string `json:"family"` // IPv4, IPv6
	Kind   string `json:"kind"`   // ICMP, full-size ICMP, TCP, …
	Sent   int    `json:"sent"`
	Lost   int    `json:"lost"`             // and nobody asked for it
	Denied int    `json:"denied,omitempty"` // by network policies
}

// Outcome is what became of a probe.
type Outcome int

// The outcomes.
const (
	CameBack Outcome = iota
	WasLost
	WasDenied // by network policies
)

// Count adds the result of one probe.
func (c *Connectivity) Count(from, to, family, kind string, what Outcome) {
	i := slices.IndexFunc(c.Cells, func(o Cell) bool {
		return o.From == from && o.To == to && o.Family == family && o.Kind == kind
	})
	if i < 0 {
		i = len(c.Cells)
		c.Cells = append(c.Cells, Cell{From: from, To: to, Family: family, Kind: kind})
	}
	c.Cells[i].Sent++
	c.Probes.Sent++
	switch what {
	case WasLost:
		c.Cells[i].Lost++
		c.Probes.Lost++
	case WasDenied:
		c.Cells[i].Denied++
		c.Probes.Denied++
	}
}

// Join adds what another node tested.
func (c *Connectivity) Join(o Connectivity) {
	c.Cells, c.Lost = append(c.Cells, o.Cells...), append(c.Lost, o.Lost...)
	c.Probes = c.Probes.and(o.Probes)
}

// Explain adds where probes are lost.
func (c *Connectivity) Explain(lost Lost) { c.Lost = lost.findings() }

// Failed reports whether a probe is lost, or a node could not be asked.
func (c Connectivity) Failed() bool { return c.Probes.Lost > 0 || len(c.Silent) > 0 }

// WriteJSON writes the result for programs.
func (c Connectivity) WriteJSON(w io.Writer) error { return writeJSON(w, c) }

// WriteText writes the result as a table with a line for each pair of nodes and family, and a column for each kind.
func (c Connectivity) WriteText(w io.Writer) error {
	var kinds []string
	var rows []Cell
	for _, cell := range c.Cells {
		if !slices.Contains(kinds, cell.Kind) {
			kinds = append(kinds, cell.Kind)
		}
		row := Cell{From: cell.From, To: cell.To, Family: cell.Family}
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(append([]string{"FROM", "TO", "FAMILY"}, upper(kinds)...), "\t"))
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s", r.From, r.To, r.Family)
		for _, k := range kinds {
			fmt.Fprintf(t, "\t%s", c.cell(r, k))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	switch p := c.Probes; {
	case p.Lost > 0:
		fmt.Fprintf(&b, "✗ %d of %d probes are lost (%.1f s)\n", p.Lost, p.Sent, p.Seconds)
	case p.Sent > p.Denied:
		fmt.Fprintf(&b, "✓ %s probes came back (%.1f s)\n", p.returned(), p.Seconds)
	}
	c.Probes.writeDenied(&b)
	for i, f := range c.Lost {
		f.write(&b, i == 0 && f.kind() == packetLost)
	}
	c.Probes.writeUnread(&b)
	for _, s := range c.Silent {
		fmt.Fprintln(&b, "✗", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func upper(all []string) (out []string) {
	for _, s := range all {
		out = append(out, strings.ToUpper(s))
	}
	return out
}

// cell returns "✓", or how many of the probes came back; "–" if network policies deny them.
func (c Connectivity) cell(row Cell, kind string) string {
	for _, o := range c.Cells {
		if o.From != row.From || o.To != row.To || o.Family != row.Family || o.Kind != kind {
			continue
		}
		switch back := o.Sent - o.Lost - o.Denied; {
		case o.Lost > 0:
			return fmt.Sprintf("✗ %d/%d", back, o.Sent)
		case back == 0:
			return "– denied"
		case o.Denied > 0:
			return fmt.Sprintf("✓ %d/%d", back, o.Sent)
		}
		return "✓"
	}
	return "-"
}
