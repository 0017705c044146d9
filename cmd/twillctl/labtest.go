package main

import (
	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

func labTest(name *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "test",
		Short: "Test the connectivity of a lab: pods of all pairs of nodes, every protocol and size",
		Long: `Test sends packets from every pod to every other: ICMP and UDP small and of full size, and a TCP connection with
data both ways. It prints a table of the pairs of nodes. Lost packets are followed, and what loses them is named.
Exit codes: 0 all packets came back but for those that network policies deny, 1 some are lost, 2 it failed.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			tested, err := target.NewLab(*name, version).Test(c.Context(), target.Goals{})
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, tested)
		},
	}
	addOutput(c, &output)
	return c
}
