package target

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// FastPath is how the fast path of one node does.
type FastPath struct {
	Node     string          `json:"node,omitempty"`
	Off      string          `json:"off,omitempty"`        // why there is none
	Programs []string        `json:"programs,omitempty"`   // "from_pod dev cni0"
	Deadline time.Time       `json:"deadline,omitzero"`    // when the programs stop if the agent does not
	Paused   time.Time       `json:"pausedUntil,omitzero"` // until when packets take the kernel's own path
	Counts   fastpath.Counts `json:"counts,omitzero"`      // since the maps were made
}

// FastPathReport is what `twillctl fastpath status` prints.
type FastPathReport struct {
	Schema int        `json:"schema"`
	Nodes  []FastPath `json:"nodes"`
	Silent []string   `json:"silent,omitempty"` // nodes that could not be asked, and why
}

// FastPath returns how the fast path of the node does.
func (h *here) FastPath(context.Context) (FastPathReport, error) {
	r := FastPathReport{Schema: doctor.Schema, Nodes: []FastPath{}}
	return r, h.do(func() error {
		s, err := readFastPath(h.bpffs)
		s.Node = h.name
		r.Nodes = append(r.Nodes, s)
		return err
	})
}

// readFastPath reads what is pinned for this network namespace.
func readFastPath(dir string) (s FastPath, err error) {
	p, err := fastpath.OpenPinned(dir)
	if err != nil {
		return FastPath{Off: err.Error()}, nil //nolint:nilerr // it is the answer
	}
	defer p.Close()
	state, err := p.Observe(nil, nil)
	if err != nil {
		return s, err
	}
	for _, o := range state.Sorted() {
		if program, ok := o.(netstate.Program); ok {
			s.Programs = append(s.Programs, program.String())
		}
	}
	s.Deadline, s.Paused = p.Deadline(), p.Paused()
	s.Counts, err = p.Counts()
	return s, err
}

// PauseFastPath pauses, or ends a pause.
func (h *here) PauseFastPath(_ context.Context, pause time.Duration) (said []Said, err error) {
	err = h.do(func() error {
		p, err := fastpath.OpenPinned(h.bpffs)
		if err != nil {
			return err
		}
		defer p.Close()
		var until time.Time
		text := "packets may take the fast path again"
		if pause > 0 {
			until = time.Now().Add(pause)
			text = "all packets take the kernel's own path until " + until.Format(time.TimeOnly)
		}
		if err = p.Pause(until); err == nil {
			said = []Said{{Node: h.name, Text: text}}
		}
		return err
	})
	return said, err
}

// say writes a line, with the node in front of it.
func say(w io.Writer, node, text string) {
	if node != "" {
		text = node + ": " + text
	}
	fmt.Fprintln(w, text)
}

// Failed reports whether a node could not be asked.
func (r FastPathReport) Failed() bool { return len(r.Silent) > 0 }

// WriteJSON writes the report as one JSON value.
func (r FastPathReport) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes a paragraph for each node.
func (r FastPathReport) WriteText(w io.Writer) error {
	for _, n := range r.Nodes {
		if err := n.writeText(w); err != nil {
			return err
		}
	}
	for _, s := range r.Silent {
		fmt.Fprintln(w, "not asked:", s)
	}
	return nil
}

func (n FastPath) writeText(w io.Writer) error {
	if n.Off != "" {
		say(w, n.Node, "fast path: off: "+n.Off)
		return nil
	}
	say(w, n.Node, n.summary())
	for _, p := range n.Programs {
		fmt.Fprintln(w, " ", p)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range n.Counts.Results {
		if c.Packets > 0 {
			path := "kernel"
			if c.Fast {
				path = "fast"
			}
			fmt.Fprintf(table, "  %s\t%s\t%s\t%d packets\t%d bytes\n", c.Program, path, c.Result, c.Packets, c.Bytes)
		}
	}
	return table.Flush()
}

// summary is how the fast path does, in a line.
func (n FastPath) summary() string {
	switch {
	case len(n.Programs) == 0:
		return "fast path: off: no program is attached"
	case n.Deadline.IsZero():
		return "fast path: off: no agent has extended it for ten minutes"
	case !n.Paused.IsZero():
		return "fast path: paused until " + n.Paused.Format(time.TimeOnly)
	}
	var fast, all uint64
	for _, c := range n.Counts.Results {
		if !between(c) {
			continue
		}
		all += c.Packets
		if c.Fast {
			fast += c.Packets
		}
	}
	if all == 0 {
		return "fast path: on, no packets of pods of two nodes yet"
	}
	return fmt.Sprintf("fast path: on, %d %% of %d packets between pods of two nodes took it", fast*100/all, all)
}

// between reports whether packets were sent between a pod of this node and one of a peer.
func between(c fastpath.Count) bool {
	return c.Result != "not-ours" && c.Result != "no-peer" && c.Result != "no-pod"
}
