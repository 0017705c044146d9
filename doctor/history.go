package doctor

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Event is something that happened to a node's network.
type Event struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`            // start, lease, change, repair, error or finding
	Peer  string    `json:"peer,omitempty"`  // whom it is about, if that is one node
	Text  string    `json:"text"`            // one line, for people
	Count int       `json:"count,omitempty"` // how many changes the event stands for; 0: one
	Took  float64   `json:"took,omitempty"`  // milliseconds, of a repair or a change
}

// NodeHistory is what a node's agent remembers.
type NodeHistory struct {
	Node    string    `json:"node"`
	Since   time.Time `json:"since"`             // nothing older is known
	Dropped int       `json:"dropped,omitempty"` // events since then that were forgotten, because there were too many
	Events  []Event   `json:"events"`            // oldest first
	Error   string    `json:"error,omitempty"`   // why there are none
}

// HistoryReport is what the agents of nodes remember.
type HistoryReport struct {
	Schema int           `json:"schema"`
	Nodes  []NodeHistory `json:"nodes"`
	// Silent are the nodes of a cluster whose agents could not be asked, each with the reason.
	Silent []string `json:"silent,omitempty"`
}

// Failed reports whether a node could not be asked.
func (r HistoryReport) Failed() bool {
	return len(r.Silent) > 0 || slices.ContainsFunc(r.Nodes, func(n NodeHistory) bool { return n.Error != "" })
}

// WriteJSON writes the report for programs.
func (r HistoryReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText writes the report for people: a line for each event of all nodes, oldest first.
func (r HistoryReport) WriteText(w io.Writer) error {
	type line struct {
		node string
		Event
	}
	var all []line
	var wrong []string
	for _, n := range r.Nodes {
		for _, e := range n.Events {
			all = append(all, line{n.Node, e})
		}
		if n.Error != "" {
			wrong = append(wrong, n.Node+": "+n.Error)
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return a.At.Compare(b.At) })
	for _, l := range all {
		text := l.Text
		if l.Peer != "" {
			text = l.Peer + " " + text
		}
		if l.Took > 0 {
			text += fmt.Sprintf(" (%.1f ms)", l.Took)
		}
		if _, err := fmt.Fprintf(w, "%s  %s  %-6s  %s\n", l.At.Local().Format(time.DateTime), l.node, l.Kind, text); err != nil {
			return err
		}
	}
	for _, silent := range append(wrong, r.Silent...) {
		if _, err := fmt.Fprintln(w, "✗", silent); err != nil {
			return err
		}
	}
	return nil
}

// After returns the report without what was before a time.
func (r HistoryReport) After(begin time.Time) HistoryReport {
	r.Nodes = slices.Clone(r.Nodes)
	for i, n := range r.Nodes {
		events := []Event{}
		for _, e := range n.Events {
			if !e.At.Before(begin) {
				events = append(events, e)
			}
		}
		r.Nodes[i].Events = events
	}
	return r
}
