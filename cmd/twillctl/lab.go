package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/rebuild"
)

func labCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lab",
		Short: "Run a small cluster of network namespaces on this machine",
		Long: `A lab's nodes are network namespaces on an underlay. Each runs the real twilld, and pods are wired by the
real twill plugin. Nothing else is installed. Root's labs are this machine's; those of another user are in namespaces of
that user's own, where the system allows it.`,
	}
	name := c.PersistentFlags().String("name", lab.DefaultName, "the lab's name, and the prefix of its namespaces")
	_ = c.RegisterFlagCompletionFunc("name", completeLabs) // the flag is there, and has none yet
	c.AddCommand(labUp(name), labDown(name), labStatus(name), labPing(name), labTest(name), labExec(name), labServe(),
		labHold(), labRun(name), labDo(name), labList(), labShow(), labVerbs(), labFaults(), labWalk(name), labCapture(name))
	return c
}

// upFlags is what lab up was told.
type upFlags struct {
	spec    lab.Spec
	netConf string
	from    string
	agents  []string
	sites   siteFlags
	timeout time.Duration
	report  *rebuild.Report // of --from
}

func labUp(name *string) *cobra.Command {
	var f upFlags
	c := &cobra.Command{
		Use:   "up",
		Short: "Bring up a lab and print its ping matrix",
		Example: `  twillctl lab up                                      3 nodes, vxlan
  twillctl lab up --family dual --store kube            with a real kube-apiserver
  twillctl lab up --store kube --proxy nftables         and kube-proxies, for the command service of lab do
  twillctl lab up --underlay l3 --direct-routing        two segments, encapsulated only between them
  twillctl lab up --nat node2 --link-mtu 9000           one node behind a router that translates, large packets
  twillctl lab up --agent node2=/usr/bin/flanneld       a mixed cluster
  twillctl lab up --from twill-report.tar.gz            a cluster as twillctl report saw it`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f.spec.Name = *name
			return f.run(c)
		},
	}
	fs := c.Flags()
	fs.IntVar(&f.spec.Nodes, "nodes", 3, "number of nodes")
	fs.IntVar(&f.spec.Pods, "pods", 2, "number of pods on each node")
	fs.StringVar(&f.spec.Underlay, "underlay", lab.L2, "l2: one segment; l3: two, with a router between them")
	fs.StringVar(&f.spec.Backend, "backend", "vxlan", "vxlan, host-gw, alloc, extension, …: a Type of net-conf.json")
	fs.BoolVar(&f.spec.DirectRouting, "direct-routing", false, "vxlan and ipip: encapsulate only between segments")
	fs.StringVar(&f.spec.Store, "store", lab.File, "where leases are: file, etcd or kube (a real kube-apiserver)")
	fs.StringVar(&f.spec.Proxy, "proxy", "", "with --store kube, a kube-proxy on each node: iptables or nftables")
	fs.StringVar(&f.spec.Family, "family", lab.IPv4, "4, 6 or dual")
	fs.StringVar(&f.netConf, "net-conf", "", "a net-conf.json of your own, instead of one made from the other flags")
	fs.StringArrayVar(&f.agents, "agent", nil, "[NODE=]PATH: another agent that takes flannel's flags, on all nodes or on one; repeatable")
	fs.BoolVar(&f.spec.FastPath, "fast-path", false, "pods' packets take the fast path (eBPF), of vxlan and host-gw")
	fs.BoolVar(&f.spec.NetworkPolicy, "network-policy", false, "agents enforce the policies that lab do policy apply gives them")
	f.sites.register(c)
	for flag, values := range map[string][]string{"backend": registry.Types(), "store": {lab.File, lab.Etcd, lab.Kube},
		"proxy": lab.Modes, "family": {lab.IPv4, lab.IPv6, lab.Dual}, "underlay": {lab.L2, lab.L3}} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // as above
	}
	fs.BoolVar(&f.spec.Keep, "keep", false, "leave what stands when the lab does not come up")
	fs.DurationVar(&f.timeout, "timeout", time.Minute, "give up after this time")
	f.registerFrom(c)
	return c
}

// complete reads what the flags refer to.
func (f *upFlags) complete() error {
	if f.netConf != "" {
		data, err := os.ReadFile(f.netConf)
		if err != nil {
			return fmt.Errorf("--net-conf: %w", err)
		}
		f.spec.NetConf = data
	}
	if err := f.sites.complete(&f.spec); err != nil {
		return err
	}
	if f.spec.Pods == 0 {
		f.spec.Pods = -1 // in a Spec 0 is the default
	}
	for _, value := range f.agents {
		node, path, ok := strings.Cut(value, "=")
		if !ok {
			node, path = "", value
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("--agent %s: want [NODE=]PATH: %w", value, err)
		}
		if f.spec.Agents == nil {
			f.spec.Agents = map[string]string{}
		}
		f.spec.Agents[node] = path
	}
	return nil
}

func (f *upFlags) run(c *cobra.Command) error {
	if err := errors.Join(f.complete(), f.readFrom(c)); err != nil {
		return err
	}
	ctx, cancel := withTimeout(c, f.timeout)
	defer cancel()
	started := time.Now()
	l, err := lab.Up(ctx, f.spec, func(line string) {
		fmt.Fprintf(c.ErrOrStderr(), "%6.2fs  %s\n", time.Since(started).Seconds(), line)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if err != nil {
		return err
	}
	if err := f.apply(ctx, c, l); err != nil {
		return err
	}
	report, err := l.Report(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "%6.2fs  done\n\n", time.Since(started).Seconds())
	if err := report.WriteText(c.OutOrStdout()); err != nil {
		return err
	}
	if err := writeNext(c.OutOrStdout(), l); err != nil {
		return err
	}
	if report.Failed() && f.report == nil {
		return errFindings
	}
	return nil
}

// writeNext says what can be tried in a new lab, with the program as it was called: it need not be in the PATH.
func writeNext(w io.Writer, l *lab.Lab) error {
	node, name := l.Nodes()[0], ""
	if len(node.Subnets()) == 0 {
		return nil // its agent has ended, which the report says
	}
	if l.Name() != lab.DefaultName {
		name = " --name " + l.Name()
	}
	inLab, lines := "lab"+name, [][2]string{{"ui --lab " + l.Name(), "the network in a browser"}}
	if pods := l.Pods(); len(pods) > 1 {
		way := fmt.Sprintf("%s walk %s %s", inLab, pods[0].ID(), pods[len(pods)-1].ID())
		lines = append(lines, [2]string{way, "a packet's way from table to table"})
	}
	if l.Spec().FastPath {
		ask := fmt.Sprintf("%s exec %s -- %s fastpath status --bpffs %s", inLab, node.Name, os.Args[0], l.BPFDir())
		lines = append(lines, [2]string{ask, "which packets take the fast path"})
	}
	if len(l.Nodes()) > 1 {
		lines = append(lines, [2]string{inLab + " do fault routes-flushed", "break something"})
	}
	lines = append(lines, [][2]string{
		{inLab + " ping", "the matrix again"},
		{"doctor --probe --lab " + l.Name(), "what is wrong, and what mends it"},
		{"lab list", "scripts that build labs and break them"},
		{inLab + " down", "remove it all"},
	}...)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\ntry next:")
	for _, line := range lines {
		fmt.Fprintf(t, "  %s %s\t%s\n", os.Args[0], line[0], line[1])
	}
	fmt.Fprintf(t, "  tail -f %s\twhat the agent says\n", node.Log())
	return t.Flush()
}
