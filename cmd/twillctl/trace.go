package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/traffic"
)

func traceCommand() *cobra.Command {
	var t target
	var output string
	c := &cobra.Command{
		Use:   "trace SRC DST",
		Short: "Follow a packet between two pods from table to table, up to where it stops",
		Long: `Trace shows each place on the path of a packet and of its reply, with the entry that decides there, up to
the first that stops the packet. In a lab SRC and DST are pods (node1/pod1), addresses of pods, or nodes (their first
pod), and both nodes are looked at. In a cluster (kubectl twill) they are pods (namespace/name), addresses of pods, or
nodes. On a machine they are addresses, and only this node's part of the path is shown.
In a lab it then sends packets from SRC to DST: ICMP and UDP small and of full size, and a TCP connection. Those that
are lost are followed: what drops them is named, whatever the tables let expect.
DST may also be a Service: service/NAMESPACE/NAME or its DNS name, with :PORT or :PORT/udp if not all its ports are
meant, or ADDRESS:PORT of a cluster IP, an external IP, a node port or a host port. Trace then connects to it from SRC
several times, says which endpoints were chosen and by which rules, or why none was, and follows the path to one. A lab
needs an API server for that (lab up --store kube); on a machine --objects has what kubectl prints of Services.
With --live it also watches real packets of the two, in either direction: on which devices they are seen, and why the
kernel drops them, which it tells through eBPF (Linux 5.17, root). In a lab the sender pings meanwhile.
Exit codes: 0 nothing stops the packet, 1 something does, 2 it failed.`,
		Example: `  twillctl trace --lab twill node1/pod1 node2/pod1
  twillctl trace 10.244.1.5 10.244.2.7
  kubectl twill trace default/web-0 shop/db-1
  kubectl twill trace default/web-0 service/shop/db:5432
  twillctl trace --live --for 30s 10.244.1.5 10.244.2.7`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completePods(&t.lab),
		RunE: func(c *cobra.Command, args []string) error {
			trace, err := t.trace(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, trace)
		},
	}
	t.register(c)
	c.Flags().BoolVar(&t.options.Probe, "probe", true,
		"also send packets: in a lab from the pod itself, each protocol and size, and follow those that are lost")
	c.Flags().BoolVar(&t.live, "live", false, "also watch real packets, and ask the kernel why it drops them")
	c.Flags().DurationVar(&t.during, "for", 3*time.Second, "how long to watch, with --live")
	c.Flags().StringVar(&t.objects, "objects", "", "a file with the Services, EndpointSlices and nodes that kubectl get "+
		"--output=json prints, - for standard input; a lab or a cluster is asked itself")
	c.Flags().BoolVar(&t.targets, "targets", false, "--objects has what a workstation made of them")
	_ = c.Flags().MarkHidden("targets") // it exists
	addOutput(c, &output)
	return c
}

func (t *target) trace(ctx context.Context, src, dst string) (doctor.Trace, error) {
	switch {
	case t.inCluster():
		return t.cluster.trace(ctx, t, src, dst)
	case t.lab == "":
		return t.traceHere(ctx, src, dst)
	}
	return t.traceInLab(ctx, src, dst)
}

// end is one end of a trace: a pod.
type end struct {
	node string
	addr netip.Addr
	all  []netip.Addr // of both families
}

// traceHere traces this node's part of the path. The leases say on which nodes the ends are.
func (t *target) traceHere(ctx context.Context, src, dst string) (doctor.Trace, error) {
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return t.serviceHere(ctx, src, q)
	}
	a, err := netip.ParseAddr(src)
	if err != nil {
		return doctor.Trace{}, fmt.Errorf("SRC %q: want an address of a pod", src)
	}
	b, err := netip.ParseAddr(dst)
	if err != nil {
		return doctor.Trace{}, fmt.Errorf("DST %q: want an address of a pod", dst)
	}
	tables := *t
	tables.options.Probe = false // probes follow
	f, err := tables.gather(ctx, nil)
	if err != nil {
		return doctor.Trace{}, err
	}
	flow := doctor.Flow{Src: a, Dst: b, From: f.HolderOf(a), To: f.HolderOf(b)}
	for _, e := range []struct{ node, text string }{{flow.From, src}, {flow.To, dst}} {
		if e.node == "" {
			return doctor.Trace{}, fmt.Errorf("%s is in no node's subnet that this node knows", e.text)
		}
	}
	if !strings.EqualFold(f.Node, flow.From) && !strings.EqualFold(f.Node, flow.To) {
		return doctor.Trace{}, fmt.Errorf("neither %s (on %s) nor %s (on %s) is on this node, which is %s",
			src, flow.From, dst, flow.To, f.Node)
	}
	trace := doctor.FollowHere(f, flow)
	if t.options.Probe {
		if err := probeFromHere(ctx, &trace, f, flow); err != nil {
			return trace, err
		}
	}
	if !t.live {
		return trace, nil
	}
	ctx, stop := context.WithTimeout(ctx, t.during)
	defer stop()
	seen, err := traffic.Watcher{Src: a, Dst: b, Places: []traffic.Place{traffic.Here(f.Node)}}.Run(ctx, func() {})
	trace.Traffic = &seen
	return trace, err
}

// probeFromHere sends packets from this node's pod to the other one, or if it cannot be entered from the node itself.
func probeFromHere(ctx context.Context, trace *doctor.Trace, f doctor.Facts, flow doctor.Flow) error {
	src, dst := flow.Src, flow.Dst
	if !strings.EqualFold(f.Node, flow.From) {
		src, dst = dst, src
	}
	n, err := follow.Node(follow.Here, f, src, dst)
	if err != nil {
		return err
	}
	judges := doctor.NewJudges(f)
	n.Denies = judges.Denies
	began := time.Now()
	r, err := n.ProbePair(ctx, n.Sender(src), dst)
	p := probesOf(r, began)
	p.Other = n.Sender(src) != src
	trace.Add(p, judges.Lost(r.Losses, r.Denied))
	return err
}
