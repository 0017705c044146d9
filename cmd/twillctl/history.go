package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
)

func historyCommand() *cobra.Command {
	var t target
	var output string
	var since time.Duration
	c := &cobra.Command{
		Use:   "history [NODE]",
		Short: "Print what happened to this node's network in the last hour, or to all nodes of a lab or a cluster",
		Long: `Agents remember the last hour: their start, leases of nodes that joined, moved and left, what they changed in the
kernel for these, what they repaired because somebody else had changed it, and errors. What an agent remembers ends with
it; it keeps a thousand events at most.`,
		Example: `  twillctl history --lab twill
  kubectl twill history worker3 --since 5m`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			if since <= 0 {
				return fmt.Errorf("--since %v: want a time such as 5m", since)
			}
			r, err := t.history(c.Context(), args, since)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, r)
		},
	}
	t.register(c)
	addOutput(c, &output)
	c.Flags().DurationVar(&since, "since", time.Hour, "how far back")
	return c
}

// history asks one node, or all of a lab or a cluster if none is named.
func (t *target) history(ctx context.Context, args []string, since time.Duration) (doctor.HistoryReport, error) {
	r := doctor.HistoryReport{Schema: doctor.Schema, Nodes: []doctor.NodeHistory{}}
	switch {
	case t.inCluster():
		answers, err := t.cluster.askNodes(ctx, args, "history", "--output=json")
		if err != nil {
			return r, err
		}
		reports, silent := decodeAll[doctor.HistoryReport](answers)
		for _, o := range reports {
			r.Nodes = append(r.Nodes, o.Nodes...)
		}
		r.Silent = silent
	case t.lab == "":
		if len(args) > 0 {
			return r, fmt.Errorf("node %q: only a node of a lab can be named, with --lab", args[0])
		}
		h, err := facts.History(t.override(facts.Options{}))
		if err != nil {
			return r, err
		}
		r.Nodes = append(r.Nodes, h)
	default:
		names := args
		if len(names) == 0 {
			var err error
			if names, err = labNodes(t.lab); err != nil {
				return r, err
			}
		}
		for _, name := range names {
			h, err := t.historyInLab(name)
			if err != nil {
				return r, err
			}
			r.Nodes = append(r.Nodes, h)
		}
	}
	return r.After(time.Now().Add(-since)), nil
}

// historyInLab asks a node of a lab. One that cannot be asked is no error: the others can.
func (t *target) historyInLab(name string) (doctor.NodeHistory, error) {
	n, o, err := labNode(t.lab, []string{name})
	if err != nil {
		return doctor.NodeHistory{}, err
	}
	var h doctor.NodeHistory
	if err := n.Do(func() (err error) {
		h, err = facts.History(t.override(o))
		return err
	}); err != nil {
		return doctor.NodeHistory{Node: name, Events: []doctor.Event{}, Error: err.Error()}, nil
	}
	return h, nil
}
