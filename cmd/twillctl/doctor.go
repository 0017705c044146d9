package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/doctor/follow"
)

// target is the node that a command is about: this machine, a lab's, or a cluster's.
type target struct {
	lab     string
	options facts.Options
	live    bool          // of trace
	during  time.Duration // of trace
	objects string        // of trace: a file of Services and EndpointSlices
	targets bool          // of trace: that file has what a workstation found in them
	remote  bool          // ask the nodes of a cluster
	cluster cluster
	bpffs   string // of fastpath
}

// inCluster reports whether the command is about a cluster's nodes.
func (t *target) inCluster() bool { return t.remote && t.lab == "" }

func (t *target) register(c *cobra.Command) {
	fs, o := c.Flags(), &t.options
	const same = "twilld's; empty: as for --checkpoint-file"
	fs.BoolVar(&t.remote, "cluster", isPlugin(),
		"ask the nodes of a cluster, through kubectl exec into the agents' pods")
	fs.StringVar(&t.cluster.context, "context", "", "kubectl's, with --cluster")
	fs.StringVar(&t.cluster.kubeconfig, "kubeconfig", "", "kubectl's, with --cluster")
	fs.StringVarP(&t.cluster.namespace, "namespace", "n", agentNamespace,
		"the namespace of the agents' DaemonSet, with --cluster")
	fs.StringVar(&t.lab, "lab", "", "look at a node of this lab, which is the argument, instead of this machine")
	_ = c.RegisterFlagCompletionFunc("lab", completeLabs) // the flag is there, and has none yet
	fs.StringVar(&o.Checkpoint, "checkpoint-file", "",
		"twilld's; empty: as the running twilld says, else its checkpoint, else the default")
	fs.StringVar(&o.SubnetFile, "subnet-file", "", same)
	fs.StringVar(&o.Bridge, "bridge", "", same)
	fs.StringVar(&o.Iface, "iface", "", same)
	fs.StringVar(&o.CNIDir, "cni-conf-dir", "", "the container runtime's directory of CNI configs; "+
		"empty: as for --checkpoint-file, else /etc/cni/net.d if it has a config of Twill's")
	fs.StringVar(&o.CNIFile, "cni-conf-file", "", "the name of Twill's CNI config there; empty: 10-twill.conflist")
	fs.StringVar(&o.BinDir, "cni-bin-dir", "", "the container runtime's directory of CNI plugins; empty: /opt/cni/bin")
	fs.StringVar(&o.CNICache, "cni-cache-dir", "",
		"the directory in which the container runtime notes what CNI plugins made; empty: /var/lib/cni")
	fs.StringVar(&o.Kubeconfig, "kubeconfig-file", "", same+". "+
		"The API is asked only if twilld has --kube-subnet-mgr")
	fs.StringVar(&o.Reservations, "reservations-dir", "",
		"the directory of the pods' reserved addresses; empty: as the CNI config says")
}

// override returns o with what the flags say instead.
func (t *target) override(o facts.Options) facts.Options {
	s := t.options
	s.Checkpoint, s.SubnetFile = cmp.Or(s.Checkpoint, o.Checkpoint), cmp.Or(s.SubnetFile, o.SubnetFile)
	s.CNIDir, s.BinDir = cmp.Or(s.CNIDir, o.CNIDir), cmp.Or(s.BinDir, o.BinDir)
	s.CNICache = cmp.Or(s.CNICache, o.CNICache)
	s.AskAPI = t.lab == "" && s.LeaseFile == ""
	return s
}

// gather looks at the node. Without --lab it is the network namespace of this process.
func (t *target) gather(ctx context.Context, args []string) (doctor.Facts, error) {
	switch {
	case t.lab != "":
		return t.gatherInLab(ctx, args)
	case len(args) > 0:
		return doctor.Facts{}, fmt.Errorf("node %q: only a node of a lab can be named, with --lab", args[0])
	}
	return facts.Gather(ctx, t.override(facts.Options{}))
}

func doctorCommand() *cobra.Command {
	var t target
	var output string
	c := &cobra.Command{
		Use:               "doctor [NODE] [SERVICE]",
		ValidArgsFunction: t.completeNode,
		Short:             "Print what is wrong with this node's network, why, and how to fix it",
		Long: `The doctor compares this node with the leases that the agent knew last, and looks at everything else that
keeps pods from reaching each other. It changes nothing and needs no API server. The first finding is the most likely
cause. With --probe and a Service (service/NAMESPACE/NAME or its DNS name, with :PORT if not all its ports are meant) a
pod of each node of the cluster or lab connects to it, too.
What network policies deny is shown, and is no fault.
Exit codes: 0 no findings, 1 findings, 2 it failed.`,
		Example: `  twillctl doctor                       this machine, or the container of the agent
  twillctl doctor --lab twill --probe   a lab: probes between all pods, and what loses them
  twillctl doctor --lab twill node2     a node of a lab
  kubectl twill doctor worker3          a node of a cluster; without a name all nodes
  kubectl twill doctor --probe service/shop/db:5432
  twillctl doctor -o json | jq -r '.findings[0].id'`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := t.doctor(c.Context(), args)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, d)
		},
	}
	t.register(c)
	c.Flags().BoolVar(&t.options.Probe, "probe", false,
		"also send packets to all peers, through the path of pods and the underlay, small and of full size")
	addOutput(c, &output)
	return c
}

// doctor diagnoses the node, or the nodes of a lab or a cluster.
func (t *target) doctor(ctx context.Context, args []string) (result, error) {
	q, args, asked, err := splitService(args)
	survey := t.inCluster() || t.lab != "" && len(args) == 0
	switch {
	case err != nil:
		return nil, err
	case len(args) > 1:
		return nil, fmt.Errorf("%q: want one node at most, and %q is another", args[1], args[0])
	case asked && !t.options.Probe:
		return nil, fmt.Errorf("%s: connecting to a Service sends packets: want --probe, too", q)
	case asked && !survey:
		return nil, fmt.Errorf("%s: one node does not know Services: want kubectl twill doctor, or --lab without a node", q)
	case survey:
		s, err := t.survey(ctx, args)
		if err == nil && asked {
			err = t.askServices(ctx, &s, q)
		}
		return s, err
	}
	began := time.Now()
	f, err := t.gather(ctx, args)
	if err != nil || !t.options.Probe {
		return doctor.Diagnose(f, time.Since(began)), err
	}
	judges := doctor.NewJudges(f)
	report, err := t.probeFrom(ctx, args, f, judges)
	d := doctor.Diagnose(f, time.Since(began))
	d.Add(probesOf(report, began), judges.Lost(report.Losses, report.Denied))
	return d, err
}

// survey diagnoses the nodes of a cluster or a lab.
func (t *target) survey(ctx context.Context, args []string) (doctor.Survey, error) {
	if t.inCluster() {
		return t.cluster.doctor(ctx, args, t.options.Probe)
	}
	return t.surveyLab(ctx)
}

// probeFrom sends packets from the node: the lab's that args name, or this one.
func (t *target) probeFrom(ctx context.Context, args []string, f doctor.Facts, judges *doctor.Judges) (follow.Report, error) {
	in := follow.Here
	if t.lab != "" {
		var err error
		if in, _, err = inLabNode(t.lab, args); err != nil {
			return follow.Report{}, err
		}
	}
	n, err := follow.Node(in, f)
	if err != nil {
		return follow.Report{}, err
	}
	n.Denies = judges.Denies
	return n.Probe(ctx)
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
