package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// fastPath is how the fast path of one node does.
type fastPath struct {
	Node     string          `json:"node,omitempty"`
	Off      string          `json:"off,omitempty"`        // why there is none
	Programs []string        `json:"programs,omitempty"`   // "from_pod dev cni0"
	Deadline time.Time       `json:"deadline,omitzero"`    // when the programs stop if the agent does not
	Paused   time.Time       `json:"pausedUntil,omitzero"` // until when packets take the kernel's own path
	Counts   fastpath.Counts `json:"counts,omitzero"`      // since the maps were made
}

// fastPathReport is what `twillctl fastpath status` prints.
type fastPathReport struct {
	Schema int        `json:"schema"`
	Nodes  []fastPath `json:"nodes"`
	Silent []string   `json:"silent,omitempty"` // nodes that could not be asked, and why
}

const fastPathLong = `The fast path sends packets of established flows between pods of different nodes past most of the kernel's network
stack. An agent has it with "FastPath": true in net-conf.json's Backend, or with --fast-path=on.`

func fastPathCommand() *cobra.Command {
	c := &cobra.Command{Use: "fastpath", Short: "Show or pause the fast path of pods' packets", Long: fastPathLong}
	c.AddCommand(fastPathStatusCommand(), fastPathPauseCommand(), fastPathResumeCommand())
	return c
}

func fastPathStatusCommand() *cobra.Command {
	var t target
	var output string
	c := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show which packets take the fast path, and why others do not",
		Long: fastPathLong + `
Of each program it prints where it is attached, and of each direction how many packets took the fast path and why others
took the kernel's own.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := t.fastPath(c.Context(), args)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, r)
		},
	}
	t.register(c)
	t.registerBPFFS(c)
	addOutput(c, &output)
	return c
}

func fastPathPauseCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:   "pause DURATION [NODE]",
		Short: "Let all packets take the kernel's own path for a while, as to look for a fault",
		Example: `  twillctl fastpath pause 10m
  kubectl twill fastpath pause 10m worker3`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			pause, err := time.ParseDuration(args[0])
			if err != nil || pause <= 0 || pause > maxPause {
				return fmt.Errorf("pause %q: want a time of up to %s, as 10m", args[0], maxPause)
			}
			return t.pauseFastPath(c, args[1:], pause)
		},
	}
	t.register(c)
	t.registerBPFFS(c)
	return c
}

// maxPause is longer than anybody looks for a fault without a break.
const maxPause = 24 * time.Hour

func fastPathResumeCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:               "resume [NODE]",
		Short:             "End a pause",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeNode,
		RunE:              func(c *cobra.Command, args []string) error { return t.pauseFastPath(c, args, 0) },
	}
	t.register(c)
	t.registerBPFFS(c)
	return c
}

// registerBPFFS adds the flag that says where the fast path's maps are.
func (t *target) registerBPFFS(c *cobra.Command) {
	c.Flags().StringVar(&t.bpffs, "bpffs", "/sys/fs/bpf", "twilld's: the BPF file system that the fast path is pinned in")
}

// fastPath asks one node, or all of a lab or a cluster.
func (t *target) fastPath(ctx context.Context, args []string) (fastPathReport, error) {
	r := fastPathReport{Schema: doctor.Schema, Nodes: []fastPath{}}
	if t.inCluster() {
		answers, err := t.cluster.askNodes(ctx, args, "fastpath", "status", "--output=json")
		all, silent := decodeAll[fastPathReport](answers)
		r.Silent = silent
		for _, a := range all {
			r.Nodes = append(r.Nodes, a.Nodes...)
		}
		return r, err
	}
	return r, t.onEach(args, func(node, dir string) error {
		s, err := readFastPath(dir)
		s.Node = node
		r.Nodes = append(r.Nodes, s)
		return err
	})
}

// onEach calls do for this machine, the lab's node that is named, or all the lab's nodes: in its network namespace, with
// its name and its BPF file system.
func (t *target) onEach(args []string, do func(node, dir string) error) error {
	switch {
	case t.lab == "" && len(args) > 0:
		return fmt.Errorf("node %q: only a node of a lab can be named, with --lab", args[0])
	case t.lab == "":
		return do("", t.bpffs)
	}
	l, err := lab.Open("", t.lab)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		n, _, err := labNode(t.lab, args)
		if err != nil {
			return err
		}
		return n.Do(func() error { return do(n.Name, l.BPFDir()) })
	}
	for _, n := range l.Nodes() {
		if err := n.Do(func() error { return do(n.Name, l.BPFDir()) }); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// readFastPath reads what is pinned for this network namespace.
func readFastPath(dir string) (s fastPath, err error) {
	p, err := fastpath.OpenPinned(dir)
	if err != nil {
		return fastPath{Off: err.Error()}, nil //nolint:nilerr // it is the answer
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

// pauseFastPath pauses for so long from now, and ends a pause with 0.
func (t *target) pauseFastPath(c *cobra.Command, args []string, pause time.Duration) error {
	if t.inCluster() {
		return t.pauseInCluster(c, args, pause)
	}
	return t.onEach(args, func(node, dir string) error {
		p, err := fastpath.OpenPinned(dir)
		if err != nil {
			return err
		}
		defer p.Close()
		var until time.Time
		said := "packets may take the fast path again"
		if pause > 0 {
			until = time.Now().Add(pause)
			said = "all packets take the kernel's own path until " + until.Format(time.TimeOnly)
		}
		if err = p.Pause(until); err == nil {
			say(c.OutOrStdout(), node, said)
		}
		return err
	})
}

func (t *target) pauseInCluster(c *cobra.Command, args []string, pause time.Duration) error {
	command := []string{"fastpath", "resume"}
	if pause > 0 {
		command = []string{"fastpath", "pause", pause.String()}
	}
	answers, err := t.cluster.askNodes(c.Context(), args, command...)
	failed := 0
	for _, a := range answers {
		if a.err != nil {
			failed++
			fmt.Fprintln(c.ErrOrStderr(), a.err)
			continue
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: %s", a.node, a.out)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d nodes failed", failed, len(answers))
	}
	return err
}

func say(w io.Writer, node, text string) {
	if node != "" {
		text = node + ": " + text
	}
	fmt.Fprintln(w, text)
}

// Failed reports whether a node could not be asked.
func (r fastPathReport) Failed() bool { return len(r.Silent) > 0 }

// WriteJSON writes the report as one JSON value.
func (r fastPathReport) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes a paragraph for each node.
func (r fastPathReport) WriteText(w io.Writer) error {
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

func (n fastPath) writeText(w io.Writer) error {
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
func (n fastPath) summary() string {
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
