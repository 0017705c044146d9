package main

import (
	"context"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
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
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			tested, err := testLab(c.Context(), l)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, tested)
		},
	}
	addOutput(c, &output)
	return c
}

func testLab(ctx context.Context, l *lab.Lab) (doctor.Connectivity, error) {
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	looks := sync.OnceValue(func() *labLooks { return (&target{lab: l.Name()}).lookAtAll(ctx, l) })
	n, err := labNetwork(l, func(host string, o locate.Object) bool { return looks().expects(host, o) })
	if err != nil {
		return tested, err
	}
	judges := doctor.NewJudges()
	if l.Spec().NetworkPolicy {
		judges = looks().judges()
	}
	n.Denies = judges.Denies
	began := time.Now()
	r, err := n.Probe(ctx)
	count(&tested, n, r)
	tested.Probes.Seconds, tested.Probes.Unread = time.Since(began).Seconds(), r.Unread
	tested.Explain(judges.Lost(r.Losses, r.Denied))
	return tested, err
}

// count adds the results of probes to the cells of their nodes.
func count(c *doctor.Connectivity, n follow.Network, r follow.Report) {
	node := map[string]string{}
	for _, p := range n.Pods {
		node[p.Host] = p.Node
	}
	for _, x := range r.Results {
		what := doctor.CameBack
		if x.Lost() {
			what = doctor.WasLost
		}
		if r.IsDenied(x) {
			what = doctor.WasDenied
		}
		c.Count(node[x.From.Host], node[x.To.Host], netstate.FamilyOf(x.Dst).String(), string(x.Kind), what)
	}
}
