package main

import (
	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

func testCommand() *cobra.Command {
	var f target.Flags
	var g target.Goals
	var output string
	c := &cobra.Command{
		Use:   "test",
		Short: "Test the connectivity of a cluster, from each node to pods, nodes, Services, DNS and the outside",
		Long: `Test sends packets and prints a table of what came back. In a cluster (kubectl twill test) all agents send: to
the bridges and some pods of all nodes, ICMP small and of full size, to the nodes, to the API's Service and to DNS. On a
machine it sends from its pods, or itself, to its peers and to what the flags name. Pods send to their node's gateway and
to the addresses of --outside, too; any answer of these counts. With --lab it is twillctl lab test.
Lost packets are followed, and what loses them on that node is named. No image is pulled, and no pod is started.
Exit codes: 0 all packets came back but for those that network policies deny, 1 some are lost, 2 it failed.`,
		Example: `  kubectl twill test
  kubectl twill test --outside 192.0.2.1
  twillctl test                         this node to its peers
  twillctl lab test                     all pods of a lab to all others`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := f.Target()
			if err != nil {
				return err
			}
			tested, err := t.Test(c.Context(), g)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, tested)
		},
	}
	register(c, &f)
	fs := c.Flags()
	fs.StringSliceVar(&g.Pods, "pod", nil, "addresses of pods to ping too")
	fs.StringSliceVar(&g.Services, "service", nil, "Services to connect to, NAME=ADDRESS:PORT; any answer counts")
	fs.StringSliceVar(&g.DNS, "dns", nil, "addresses of DNS servers to ask for kubernetes.default.svc")
	fs.StringSliceVar(&g.Outside, "outside", nil, "addresses outside of the cluster that pods send to; in a lab the host outside by default")
	addOutput(c, &output)
	return c
}
