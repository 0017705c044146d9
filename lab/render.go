package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// widestMatrix is the number of pods up to which the pings are shown as a matrix.
const widestMatrix = 12

// WriteJSON renders the report as JSON.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText renders the report for people: the nodes, the pings if there were any, and the findings.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"lab %s: underlay %s, family %s, backend %s, store %s\n\n",
		r.Name,
		r.Underlay,
		r.Family,
		r.Backend,
		r.Store,
	)
	r.writeNodes(&b)
	if len(r.Pings) > 0 {
		b.WriteByte('\n')
		r.writePings(&b)
	}
	for i, f := range r.Findings {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, "✗", f)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) writeNodes(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tUNDERLAY\tSUBNET\tMTU\tAGENT\tPODS")
	for _, n := range r.Nodes {
		var pods []string
		for _, p := range n.Pods {
			pods = append(pods, p.Name+" "+joined(p.Addrs))
		}
		fmt.Fprintf(
			t,
			"%s\t%s\t%s\t%d\t%s %s\t%s\n",
			n.Name,
			joined(n.Underlay),
			joined(n.Subnets),
			n.MTU,
			n.Agent,
			n.State,
			strings.Join(pods, "  "),
		)
	}
	t.Flush()
}

func (r Report) writePings(w io.Writer) {
	pods := r.pods()
	if len(pods) <= widestMatrix {
		r.writeMatrix(w, pods)
	}
	lost, slowest := 0, time.Duration(0)
	for _, p := range r.Pings {
		if slowest = max(slowest, p.RTT); !p.OK() {
			lost++
		}
	}
	fmt.Fprintf(
		w,
		"%d of %d pings answered, the slowest after %s\n",
		len(r.Pings)-lost,
		len(r.Pings),
		milliseconds(slowest),
	)
}

// writeMatrix has a row for every sender and a column for every receiver; of two families IPv4 comes first.
func (r Report) writeMatrix(w io.Writer, pods []string) {
	cells := map[[2]string][]string{}
	for _, p := range r.Pings {
		text := "✗"
		if p.OK() {
			text = fmt.Sprintf("%.2f", float64(p.RTT)/float64(time.Millisecond))
		}
		cells[[2]string{p.From, p.To}] = append(cells[[2]string{p.From, p.To}], text)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PING ms\t"+strings.Join(pods, "\t"))
	for _, from := range pods {
		row := []string{from}
		for _, to := range pods {
			cell := strings.Join(cells[[2]string{from, to}], "/")
			if from == to {
				cell = "·"
			}
			row = append(row, cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
}

func (r Report) pods() []string {
	var pods []string
	for _, n := range r.Nodes {
		for _, p := range n.Pods {
			pods = append(pods, n.Name+"/"+p.Name)
		}
	}
	return slices.Clip(pods)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
