package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

func traceCommand() *cobra.Command {
	var f target.Flags
	var how target.Tracing
	var output string
	c := &cobra.Command{
		Use:   "trace SRC DST",
		Short: "Follow a packet from a pod to another, or to the outside, from table to table, up to where it stops",
		Long: `Trace shows each place on the path of a packet and of its reply, with the entry that decides there, up to
the first that stops the packet. In a lab SRC and DST are pods (node1/pod1), addresses of pods, or nodes (their first
pod), and both nodes are looked at. In a cluster (kubectl twill) they are pods (namespace/name), addresses of pods, or
nodes. On a machine they are addresses, and only this node's part of the path is shown.
In a lab it then sends packets from SRC to DST: ICMP and UDP small and of full size, and a TCP connection. Those that
are lost are followed: what drops them is named, whatever the tables let expect.
DST may also be an address outside of the cluster, in a lab its host outside: the way through the pod's node is shown, and
one ping is sent, which anything may answer.
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
  twillctl trace --lab twill node1/pod1 outside
  kubectl twill trace default/web-0 service/shop/db:5432
  twillctl trace --live --for 30s 10.244.1.5 10.244.2.7`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= 2 {
				return nil, noFiles
			}
			return f.CompletePods(), noFiles
		},
		RunE: func(c *cobra.Command, args []string) error {
			t, err := f.Target()
			if err != nil {
				return err
			}
			trace, err := t.Trace(c.Context(), args[0], args[1], how)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, trace)
		},
	}
	register(c, &f)
	c.Flags().BoolVar(&how.Probe, "probe", true,
		"also send packets: in a lab from the pod itself, each protocol and size, and follow those that are lost")
	c.Flags().BoolVar(&how.Live, "live", false, "also watch real packets, and ask the kernel why it drops them")
	c.Flags().DurationVar(&how.During, "for", 3*time.Second, "how long to watch, with --live")
	c.Flags().StringVar(&how.Objects, "objects", "", "a file with the Services, EndpointSlices and nodes that kubectl get "+
		"--output=json prints, - for standard input; a lab or a cluster is asked itself")
	c.Flags().BoolVar(&how.Targets, "targets", false, "--objects has what a workstation made of them")
	_ = c.Flags().MarkHidden("targets") // it exists
	addOutput(c, &output)
	return c
}
