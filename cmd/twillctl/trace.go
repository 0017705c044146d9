package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/live"
)

func traceCommand() *cobra.Command {
	var t target
	var output string
	c := &cobra.Command{
		Use:   "trace SRC DST",
		Short: "Follow a packet between two pods from table to table, and stop where it cannot go on",
		Long: `Trace shows each place on the way of a packet and of its reply, with the entry that decides there, and stops at the
first that stops the packet. In a lab SRC and DST are pods (node1/pod1), addresses of pods, or nodes (their first
pod), and both nodes are looked at. In a cluster (kubectl twill) they are pods (namespace/name), addresses of pods, or
nodes. On a machine they are addresses, and only this node's part of the way is seen.
With --live it also watches real packets of the two, in either direction: on which devices they are seen, and for what
reason the kernel drops them, which it says through eBPF (Linux 5.17, root). In a lab the sender pings meanwhile.
Exit codes: 0 nothing stops it, 1 something does, 2 it could not be followed.`,
		Example: `  twillctl trace --lab twill node1/pod1 node2/pod1
  twillctl trace 10.244.1.5 10.244.2.7
  kubectl twill trace default/web-0 shop/db-1
  twillctl trace --live --for 30s 10.244.1.5 10.244.2.7`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			trip, err := t.trace(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if err := render(c.OutOrStdout(), output, trip.WriteText, trip.WriteJSON); err != nil {
				return err
			}
			if trip.Trouble() {
				return errFindings
			}
			return nil
		},
	}
	t.register(c)
	c.Flags().BoolVar(&t.probe, "probe", false, "also send packets, which shows what stops them between the nodes")
	c.Flags().BoolVar(&t.live, "live", false, "also watch real packets, and ask the kernel why it drops them")
	c.Flags().DurationVar(&t.during, "for", 3*time.Second, "how long to watch, with --live")
	addOutput(c, &output)
	return c
}

func (t *target) trace(ctx context.Context, src, dst string) (doctor.Trip, error) {
	switch {
	case t.inCluster():
		return t.cluster.trace(ctx, t, src, dst)
	case t.lab == "":
		return t.traceHere(ctx, src, dst)
	}
	return t.traceInLab(ctx, src, dst)
}

// end is a pod as trace needs it.
type end struct {
	node string
	addr netip.Addr
}

// traceHere is this node's part of the way: both ends' nodes are known from the leases.
func (t *target) traceHere(ctx context.Context, src, dst string) (doctor.Trip, error) {
	a, err := netip.ParseAddr(src)
	if err != nil {
		return doctor.Trip{}, fmt.Errorf("SRC %q: want an address of a pod", src)
	}
	b, err := netip.ParseAddr(dst)
	if err != nil {
		return doctor.Trip{}, fmt.Errorf("DST %q: want an address of a pod", dst)
	}
	f, err := t.gather(ctx, nil)
	if err != nil {
		return doctor.Trip{}, err
	}
	j := doctor.Journey{Src: a, Dst: b, From: f.HolderOf(a), To: f.HolderOf(b)}
	for _, e := range []struct{ node, text string }{{j.From, src}, {j.To, dst}} {
		if e.node == "" {
			return doctor.Trip{}, fmt.Errorf("%s is in no node's subnet that this node knows", e.text)
		}
	}
	if !strings.EqualFold(f.Node, j.From) && !strings.EqualFold(f.Node, j.To) {
		return doctor.Trip{}, fmt.Errorf("neither %s (on %s) nor %s (on %s) is on this node, which is %s", src, j.From, dst, j.To, f.Node)
	}
	trip := doctor.TraceHere(f, j)
	if !t.live {
		return trip, nil
	}
	ctx, stop := context.WithTimeout(ctx, t.during)
	defer stop()
	seen, err := live.Watching{Src: a, Dst: b, Places: []live.Place{live.Here(f.Node)}}.Watch(ctx, func() {})
	trip.Live = &seen
	return trip, err
}
