package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

func statusCommand() *cobra.Command {
	var f target.Flags
	var output string
	var watch bool
	var every, patience time.Duration
	c := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show this node, or all nodes of a lab or a cluster: lease, agent, peers in and out of sync",
		Long: `A line for each node: its lease, its agent, how many of its peers are in sync, and what is wrong. On a terminal
it has colours, unless the environment has NO_COLOR. Exit codes: 0 all is well, 1 something is wrong, 2 it failed.`,
		Example: `  kubectl twill status
  kubectl twill status --wait 5m          # after kubectl rollout status: returns when all nodes are well`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeNode(&f),
		RunE: func(c *cobra.Command, args []string) error {
			if every < minInterval {
				return fmt.Errorf("--interval %v: want %v or more", every, minInterval)
			}
			t, err := f.Target(args...)
			if err != nil {
				return err
			}
			v := statusView{out: c.OutOrStdout(), output: output, ask: t.Status}
			switch {
			case watch && patience > 0:
				return errors.New("--watch and --wait: give one; --watch goes on when all is well")
			case watch:
				return v.watch(c.Context(), every)
			case patience > 0:
				return v.wait(c.Context(), every, patience, c.ErrOrStderr())
			}
			return v.once(c.Context())
		},
	}
	register(c, &f)
	addOutput(c, &output)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until Ctrl-C")
	c.Flags().DurationVar(&every, "interval", 2*time.Second, "how often, with --watch or --wait")
	c.Flags().DurationVar(&patience, "wait", 0, "repeat for this long until nothing is wrong on any node, then show it")
	return c
}

func planCommand() *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use:               "plan [NODE]",
		ValidArgsFunction: completeNode(&f),
		Short:             "Print what the agent would change on this node now, and change nothing",
		Long: `The plan is the difference between what the leases ask for and the kernel. The leases are those of the
agent's checkpoint, or of a file: twillctl plan --lease-file leases.json --net-config-path net-conf.json --node node1.
Exit codes: 0 nothing to change, 1 there is something to change, 2 it failed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := f.Target(args...)
			if err != nil {
				return err
			}
			p, err := t.Plan(c.Context())
			if err != nil {
				return err
			}
			if _, err := io.WriteString(c.OutOrStdout(), p.Text); err != nil {
				return err
			}
			if p.Changes {
				return errFindings
			}
			return nil
		},
	}
	register(c, &f)
	f.RegisterLeases(c.Flags())
	return c
}
