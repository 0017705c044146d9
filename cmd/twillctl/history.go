package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

func historyCommand() *cobra.Command {
	var f target.Flags
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
		ValidArgsFunction: completeNode(&f),
		RunE: func(c *cobra.Command, args []string) error {
			if since <= 0 {
				return fmt.Errorf("--since %v: want a time such as 5m", since)
			}
			t, err := f.Target(args...)
			if err != nil {
				return err
			}
			r, err := t.History(c.Context(), since)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, r)
		},
	}
	register(c, &f)
	addOutput(c, &output)
	c.Flags().DurationVar(&since, "since", time.Hour, "how far back")
	return c
}
