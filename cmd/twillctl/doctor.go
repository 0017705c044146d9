package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/target"
)

// register adds the flags that say what a command is about.
func register(c *cobra.Command, f *target.Flags) {
	f.Register(c.Flags(), version, isPlugin())
	_ = c.RegisterFlagCompletionFunc("lab", completeLabs) // the flag is there, and has none yet
}

func doctorCommand() *cobra.Command {
	var f target.Flags
	var output string
	var outside []string
	var probe, noProbe bool
	c := &cobra.Command{
		Use:               "doctor [NODE] [SERVICE]",
		ValidArgsFunction: completeNode(&f),
		Short:             "Print what is wrong with this node's network, why, and how to fix it",
		Long: `The doctor compares this node with the leases that the agent knew last, and looks at everything else that
keeps pods from reaching each other. It asks each peer for an answer, which takes milliseconds, changes nothing and needs
no API server. The first finding is the most likely cause. With --probe and a Service (service/NAMESPACE/NAME or its DNS
name, with :PORT if not all its ports are meant) a pod of each node of the cluster or lab connects to it, too.
With --probe pods also send to their node's gateway, and to the addresses of --outside.
What network policies deny is shown, and is no fault.
Exit codes: 0 no findings, 1 findings, 2 it failed.`,
		Example: `  twillctl doctor                       this machine, or the container of the agent
  twillctl doctor --lab twill --probe   a lab: probes between all pods, and what loses them
  twillctl doctor --lab twill node2     a node of a lab
  kubectl twill doctor worker3          a node of a cluster; without a name all nodes
  kubectl twill doctor --probe service/shop/db:5432
  kubectl twill doctor --probe --outside 192.0.2.1
  twillctl doctor -o json | jq -r '.findings[0].id'`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := diagnose(c.Context(), &f, args, outside, probe, noProbe)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, d)
		},
	}
	register(c, &f)
	f.RegisterLeases(c.Flags())
	c.Flags().BoolVar(&probe, "probe", false,
		"also send packets between pods, in every protocol and size, and follow those that are lost")
	c.Flags().BoolVar(&noProbe, "no-probe", false, "send nothing, not even to the peers")
	c.Flags().StringSliceVar(&outside, "outside", nil,
		"addresses outside of the cluster that pods send to as well, with --probe; in a lab the host outside by default")
	addOutput(c, &output)
	return c
}

// diagnose diagnoses the node, or the nodes of a lab or a cluster, and has pods connect to a Service if one is named.
func diagnose(ctx context.Context, f *target.Flags, args, to []string, all, none bool) (result, error) {
	q, args, asked, err := splitService(args)
	outside, bad := target.Addresses("--outside", to)
	switch {
	case errors.Join(err, bad) != nil:
		return nil, errors.Join(err, bad)
	case len(to) > 0 && !all:
		return nil, fmt.Errorf("--outside %s: want --probe, too, which sends packets there", to[0])
	case len(args) > 1:
		return nil, fmt.Errorf("%q: want one node at most, and %q is another", args[1], args[0])
	case all && none:
		return nil, errors.New("--no-probe sends nothing: want it without --probe")
	case asked && !all:
		return nil, fmt.Errorf("%s: connecting to a Service sends packets: want --probe, too", q)
	}
	probe := doctor.PeerProbes
	if all {
		probe = doctor.AllProbes
	} else if none {
		probe = doctor.NoProbes
	}
	t, err := f.Target(args...)
	if err != nil {
		return nil, err
	}
	if n, ok := t.(target.Node); ok {
		if asked {
			return nil, fmt.Errorf("%s: one node does not know Services: want kubectl twill doctor, or --lab without a node", q)
		}
		return n.Diagnose(ctx, probe, outside...)
	}
	s, err := t.Doctor(ctx, probe, outside...)
	if n, ok := t.(target.Network); ok && err == nil && asked {
		err = askServices(ctx, n, &s, q)
	}
	return s, err
}

func addOutput(c *cobra.Command, output *string) {
	c.Flags().StringVarP(output, "output", "o", "text", "text or json")
}

// result is what a command found out.
type result interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
	Failed() bool // there is something wrong
}

// render writes a result in the format that was asked for. The error is errFindings if something is wrong.
func render(w io.Writer, format string, r result) error {
	write, ok := map[string]func(io.Writer) error{"text": r.WriteText, "json": r.WriteJSON}[format]
	if !ok {
		return fmt.Errorf("--output %q: want text or json", format)
	}
	if err := write(w); err != nil {
		return err
	}
	if r.Failed() {
		return errFindings
	}
	return nil
}
