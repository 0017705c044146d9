package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
)

func statusCommand() *cobra.Command {
	var t target
	var output string
	var watch bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show this node, or all nodes of a lab or a cluster: lease, agent, peers in and out of sync",
		Long: `A line for each node: its lease, its agent, how many of its peers are in sync, and what is wrong. On a terminal
it has colours, unless the environment has NO_COLOR.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: t.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			v := statusView{out: c.OutOrStdout(), output: output,
				ask: func(ctx context.Context) (doctor.StatusReport, error) { return t.status(ctx, args) }}
			switch {
			case every < minInterval:
				return fmt.Errorf("--interval %v: want %v or more", every, minInterval)
			case watch:
				return v.watch(c.Context(), every)
			}
			return v.once(c.Context())
		},
	}
	t.register(c)
	addOutput(c, &output)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until Ctrl-C")
	c.Flags().DurationVar(&every, "interval", 2*time.Second, "how often, with --watch")
	return c
}

func (t *target) status(ctx context.Context, args []string) (doctor.StatusReport, error) {
	if t.inCluster() {
		return t.cluster.status(ctx, args)
	}
	all, err := t.gatherAll(ctx, args)
	r := doctor.StatusReport{Schema: doctor.Schema}
	for _, f := range all {
		r.Nodes = append(r.Nodes, doctor.NewStatus(f))
	}
	return r, err
}

// gatherAll is gather for all nodes of a lab when none is named.
func (t *target) gatherAll(ctx context.Context, args []string) ([]doctor.Facts, error) {
	names := [][]string{args}
	if t.lab != "" && len(args) == 0 {
		nodes, err := labNodes(t.lab)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, n := range nodes {
			names = append(names, []string{n})
		}
	}
	var all []doctor.Facts
	for _, name := range names {
		f, err := t.gather(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func planCommand() *cobra.Command {
	var t target
	c := &cobra.Command{
		Use:               "plan [NODE]",
		ValidArgsFunction: t.completeNode,
		Short:             "Print what the agent would change on this node now, and change nothing",
		Long: `The plan is the difference between what the leases ask for and the kernel. The leases are those of the
agent's checkpoint, or of a file: twillctl plan --lease-file leases.json --net-config-path net-conf.json --node node1.
Exit codes: 0 nothing to change, 1 there is something to change, 2 it failed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if t.inCluster() && t.options.LeaseFile == "" {
				return t.cluster.plan(c.Context(), c.OutOrStdout(), args)
			}
			f, err := t.gather(c.Context(), args)
			if err != nil {
				return err
			}
			return writePlan(c.OutOrStdout(), f)
		},
	}
	t.register(c)
	o := &t.options
	c.Flags().StringVar(&o.LeaseFile, "lease-file", "",
		"read the leases from this file, like that of twilld --lease-file, instead of the checkpoint")
	c.Flags().StringVar(&o.NetConf, "net-config-path", "/etc/kube-flannel/net-conf.json",
		"the network config, with --lease-file")
	c.Flags().StringVar(&o.Node, "node", "", "this node's name in the lease file")
	return c
}

// nothingToChange is the plan of a healthy node.
const nothingToChange = "# nothing to change"

func writePlan(w io.Writer, f doctor.Facts) error {
	switch {
	case f.Lease.Hidden:
		return fmt.Errorf("%s may not be read: run as root", f.Lease.Path)
	case f.Lease.Missing:
		return fmt.Errorf("no checkpoint at %s: start twilld once, or name leases with --lease-file", f.Lease.Path)
	case f.Lease.Error != "":
		return fmt.Errorf("read the leases: %s", f.Lease.Error)
	}
	for _, reason := range f.NoUnderlay {
		return fmt.Errorf("choose the underlay: %s", reason)
	}
	for _, s := range f.Skips {
		fmt.Fprintf(w, "# node %s is left out: %s\n", s.Node, s.Detail)
	}
	if len(f.Plan) == 0 {
		fmt.Fprintln(w, nothingToChange)
		return nil
	}
	fmt.Fprint(w, f.Plan)
	return errFindings
}
