package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
)

// target is the node that a command is about: this machine, or a lab's.
type target struct {
	lab                                   string
	checkpoint, subnetFile, bridge, iface string
	cniDir, cniFile, binDir, reservations string
	probe                                 bool
	live                                  bool          // of trace
	during                                time.Duration // of trace
	kubeconfig                            string
	leases, netConf, node                 string // of plan
	remote                                bool   // ask the nodes of a real cluster
	cluster                               cluster
}

// inCluster says whether the command is about a real cluster's nodes. As a kubectl plugin it is, unless a lab is named.
func (t *target) inCluster() bool { return t.remote && t.lab == "" }

func (t *target) register(c *cobra.Command) {
	fs := c.Flags()
	fs.BoolVar(&t.remote, "cluster", isPlugin(), "ask the nodes of a real cluster, through kubectl exec into the agents' pods")
	fs.StringVar(&t.cluster.context, "context", "", "kubectl's, with --cluster")
	fs.StringVar(&t.cluster.kubeconfig, "kubeconfig", "", "kubectl's, with --cluster")
	fs.StringVarP(&t.cluster.namespace, "namespace", "n", agentNamespace, "the namespace of the agents' DaemonSet, with --cluster")
	fs.StringVar(&t.lab, "lab", "", "look at a node of this lab, which is the argument, and not at this machine")
	fs.StringVar(&t.checkpoint, "checkpoint-file", "", "twilld's; empty: as the running twilld was told, else the default")
	fs.StringVar(&t.subnetFile, "subnet-file", "", "twilld's; empty: as for --checkpoint-file")
	fs.StringVar(&t.bridge, "bridge", "", "twilld's; empty: as for --checkpoint-file")
	fs.StringVar(&t.iface, "iface", "", "twilld's; empty: as for --checkpoint-file")
	fs.StringVar(&t.cniDir, "cni-conf-dir", "", "the container runtime's directory of CNI configs; empty: /etc/cni/net.d if it has one of Twill's")
	fs.StringVar(&t.cniFile, "cni-conf-file", "", "the name of Twill's CNI config there; empty: 10-twill.conflist")
	fs.StringVar(&t.binDir, "cni-bin-dir", "", "the container runtime's directory of CNI plugins; empty: /opt/cni/bin")
	fs.StringVar(&t.kubeconfig, "kubeconfig-file", "", "twilld's; empty: as for --checkpoint-file. The API is asked only where twilld has --kube-subnet-mgr")
	fs.StringVar(&t.reservations, "reservations-dir", "", "the pods' reserved addresses; empty: as the CNI config says")
}

// settings completes what was found with what the flags say.
func (t *target) settings(s facts.Settings) facts.Settings {
	for at, value := range map[*string]string{&s.Checkpoint: t.checkpoint, &s.SubnetFile: t.subnetFile, &s.Bridge: t.bridge,
		&s.CNIDir: t.cniDir, &s.CNIFile: t.cniFile, &s.BinDir: t.binDir, &s.IPAMDir: t.reservations, &s.Kube.Kubeconfig: t.kubeconfig} {
		if value != "" {
			*at = value
		}
	}
	s.Kube.Named = t.kubeconfig != ""
	s.AskAPI = t.lab == "" && t.leases == ""
	s.Probe, s.LeaseFile, s.NetConf, s.Node = t.probe, t.leases, t.netConf, t.node
	if t.iface != "" {
		s.Choice.Names = []string{t.iface}
	}
	return s
}

// gather looks at the node. Without --lab it is the network namespace of this process.
func (t *target) gather(ctx context.Context, args []string) (doctor.Facts, error) {
	if t.lab == "" {
		if len(args) > 0 {
			return doctor.Facts{}, fmt.Errorf("node %q: only a node of a lab can be named, with --lab", args[0])
		}
		found, _ := facts.FindAgent()
		return facts.Gather(ctx, t.settings(found))
	}
	return t.gatherInLab(ctx, args)
}

func doctorCommand() *cobra.Command {
	var t target
	var output string
	c := &cobra.Command{
		Use:   "doctor [NODE]",
		Short: "Say what is wrong with this node's network, why, and what mends it",
		Long: `The doctor compares this node with what the agent's last known leases ask for, and looks at everything else
that keeps pods from reaching each other. It reads and changes nothing, and needs no API server.
The first finding is the most likely cause. Exit codes: 0 nothing found, 1 findings, 2 it could not look.`,
		Example: `  twillctl doctor                       this machine, or the container of the agent
  twillctl doctor --lab twill node2     a node of a lab
  kubectl twill doctor worker3          a node of a cluster; without a name all nodes
  twillctl doctor -o json | jq -r '.findings[0].id'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := t.doctor(c.Context(), args)
			if err != nil {
				return err
			}
			if err := render(c.OutOrStdout(), output, r.writeText, r.writeJSON); err != nil {
				return err
			}
			if r.findings() {
				return errFindings
			}
			return nil
		},
	}
	t.register(c)
	c.Flags().BoolVar(&t.probe, "probe", false, "also send packets to all peers, by the path of pods and by the underlay, small and of full size")
	addOutput(c, &output)
	return c
}

// doctor judges the node, or the nodes of a cluster.
func (t *target) doctor(ctx context.Context, args []string) (reports, error) {
	if t.inCluster() {
		return t.cluster.doctor(ctx, args, t.probe)
	}
	began := time.Now()
	f, err := t.gather(ctx, args)
	return reports{Nodes: []doctor.Report{doctor.NewReport(f, time.Since(began))}, single: true}, err
}

func addOutput(c *cobra.Command, output *string) {
	c.Flags().StringVarP(output, "output", "o", "text", "text or json")
}

// render writes in the format that was asked for.
func render(w io.Writer, format string, text, json func(io.Writer) error) error {
	switch format {
	case "text":
		return text(w)
	case "json":
		return json(w)
	}
	return fmt.Errorf("--output %q: want text or json", format)
}
