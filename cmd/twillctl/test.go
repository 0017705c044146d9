package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/netstate"
)

// goals are what a node is to reach besides its peers.
type goals struct {
	pods     []string // addresses
	services []string // NAME=ADDRESS:PORT
	dns      []string // addresses of the cluster's DNS
	outside  []string // addresses
}

func testCommand() *cobra.Command {
	var t target
	var g goals
	var output string
	c := &cobra.Command{
		Use:   "test",
		Short: "Test the connectivity of a cluster, from each node to pods, nodes, Services, DNS and the outside",
		Long: `Test sends packets and prints a table of what came back. In a cluster (kubectl twill test) all agents send: to
the bridges and some pods of all nodes, ICMP small and of full size, to the nodes, to the API's Service and to DNS. On a
machine it sends from its pods, or itself, to its peers and to what the flags name. Lost packets are followed, and what
loses them on that node is named. No image is pulled, and no pod is started.
Exit codes: 0 all packets came back but for those that network policies deny, 1 some are lost, 2 it failed.`,
		Example: `  kubectl twill test
  kubectl twill test --outside 192.0.2.1
  twillctl test                         this node to its peers
  twillctl lab test                     all pods of a lab to all others`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			tested, err := t.test(c.Context(), g)
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, tested)
		},
	}
	t.register(c)
	fs := c.Flags()
	fs.StringSliceVar(&g.pods, "pod", nil, "addresses of pods to ping too")
	fs.StringSliceVar(&g.services, "service", nil, "Services to connect to, NAME=ADDRESS:PORT; any answer counts")
	fs.StringSliceVar(&g.dns, "dns", nil, "addresses of DNS servers to ask for kubernetes.default.svc")
	fs.StringSliceVar(&g.outside, "outside", nil, "addresses outside of the cluster to ping")
	addOutput(c, &output)
	return c
}

func (t *target) test(ctx context.Context, g goals) (doctor.Connectivity, error) {
	if t.inCluster() {
		return t.cluster.test(ctx, g)
	}
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	if t.lab != "" {
		return tested, errors.New("--lab: a lab is tested by twillctl lab --name NAME test")
	}
	pods, err := addresses("--pod", g.pods)
	if err != nil {
		return tested, err
	}
	single, err := g.single()
	if err != nil {
		return tested, err
	}
	began := time.Now()
	f, err := t.gather(ctx, nil)
	if err != nil {
		return tested, err
	}
	n, err := follow.Node(follow.Here, f, pods...)
	if err != nil {
		return tested, err
	}
	judges := doctor.NewJudges(f)
	n.Denies = judges.Denies
	r, err := n.Probe(ctx)
	count(&tested, n, r)
	for _, s := range single {
		tested.Count(f.Node, s.name, netstate.FamilyOf(s.to.Addr()).String(), string(s.kind), outcome(probe.Ask(ctx, s.kind, s.to)))
	}
	for _, p := range f.Paths {
		err := probe.Ask(ctx, probe.ICMP, netip.AddrPortFrom(p.Underlay, 0))
		tested.Count(f.Node, "node "+p.Node, netstate.FamilyOf(p.Underlay).String(), string(probe.ICMP), outcome(err))
	}
	tested.Probes.Seconds, tested.Probes.Unread = time.Since(began).Seconds(), r.Unread
	tested.Explain(judges.Lost(r.Losses, r.Denied))
	return tested, err
}

// outcome returns what became of a packet that nobody may deny.
func outcome(err error) doctor.Outcome {
	if err != nil {
		return doctor.WasLost
	}
	return doctor.CameBack
}

// goal is one thing to reach from a node.
type goal struct {
	name string
	to   netip.AddrPort
	kind probe.Kind
}

// single returns the goals that are no pods.
func (g goals) single() (all []goal, err error) {
	for _, text := range g.services {
		name, at, _ := strings.Cut(text, "=")
		to, err := netip.ParseAddrPort(at)
		if err != nil {
			return nil, fmt.Errorf("--service %q: want NAME=ADDRESS:PORT", text)
		}
		all = append(all, goal{"Service " + name, to, probe.TCP})
	}
	dns, err := addresses("--dns", g.dns)
	for _, a := range dns {
		all = append(all, goal{"DNS", netip.AddrPortFrom(a, 53), probe.DNS})
	}
	outside, err2 := addresses("--outside", g.outside)
	for _, a := range outside {
		all = append(all, goal{"outside " + a.String(), netip.AddrPortFrom(a, 0), probe.ICMP})
	}
	return all, errors.Join(err, err2)
}

func addresses(flag string, texts []string) (all []netip.Addr, err error) {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want an IP address", flag, text)
		}
		all = append(all, a)
	}
	return all, nil
}

// maxTested is how many pods of a node the others ping.
const maxTested = 2

// test asks all agents to test what they reach, and joins the tables.
func (c cluster) test(ctx context.Context, g goals) (doctor.Connectivity, error) {
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	began := time.Now()
	pods, err := c.pods(ctx, "--all-namespaces", "--field-selector=status.phase=Running")
	if err != nil {
		return tested, err
	}
	perNode := map[string]int{}
	for _, p := range pods {
		if p.Spec.HostNetwork || perNode[p.Spec.NodeName] == maxTested {
			continue
		}
		perNode[p.Spec.NodeName]++
		for _, ip := range p.Status.PodIPs {
			g.pods = append(g.pods, ip.IP)
		}
	}
	services, err := c.services(ctx)
	if err != nil {
		return tested, err
	}
	g.services, g.dns = slices.Concat(g.services, services.api), slices.Concat(g.dns, services.dns)
	answers, err := c.askNodes(ctx, nil, slices.Concat([]string{"test", "--output=json"}, flags("--pod", g.pods),
		flags("--service", g.services), flags("--dns", g.dns), flags("--outside", g.outside))...)
	all, silent := decodeAll[doctor.Connectivity](answers)
	for _, one := range all {
		tested.Join(one)
	}
	tested.Silent, tested.Probes.Seconds = silent, time.Since(began).Seconds()
	return tested, err
}

func flags(name string, values []string) (all []string) {
	for _, v := range values {
		all = append(all, name+"="+v)
	}
	return all
}

// clusterServices are those that every cluster has.
type clusterServices struct{ api, dns []string }

// services finds the API's Service and that of the cluster's DNS.
func (c cluster) services(ctx context.Context) (s clusterServices, err error) {
	api, err := c.get(ctx, "services", "--namespace=default", "--field-selector=metadata.name=kubernetes")
	if err != nil {
		return s, err
	}
	dns, err := c.get(ctx, "services", "--namespace=kube-system", "--selector=k8s-app=kube-dns")
	for _, o := range api {
		for _, ip := range o.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil && len(o.Spec.Ports) > 0 {
				s.api = append(s.api, "default/kubernetes="+netip.AddrPortFrom(a, o.Spec.Ports[0].Port).String())
			}
		}
	}
	for _, o := range dns {
		for _, ip := range o.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				s.dns = append(s.dns, a.String())
			}
		}
	}
	return s, err
}
