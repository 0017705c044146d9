package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
)

// cluster is the nodes of a Kubernetes cluster that have an agent, with what the user's kubectl may ask.
type cluster struct {
	fan
	Cluster

	version string // of this program
}

// Target returns the nodes that have an agent, or one of them.
func (c Cluster) Target(node ...string) Target { return newCluster(c, "", node...) }

func newCluster(c Cluster, version string, node ...string) cluster {
	one := func(ctx context.Context) (Node, error) {
		if len(node) == 0 {
			return nil, errors.New("which node? want the name of one of the cluster's")
		}
		return c.agent(ctx, node[0])
	}
	return cluster{fan{c.agentsOn(node...), one}, c, version}
}

// agentsOn returns a function that finds the agents of all nodes, or of those that are named.
func (c Cluster) agentsOn(nodes ...string) func(context.Context) ([]string, func(string) Node, error) {
	return func(ctx context.Context) (names []string, node func(string) Node, err error) {
		all, err := c.agents(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, a := range all {
			names = append(names, a.node)
		}
		if len(nodes) > 0 {
			names = slices.Compact(slices.Clone(nodes))
		}
		on := map[string]Node{}
		for _, n := range names {
			a, err := agentOn(all, n)
			if err != nil {
				return nil, nil, err
			}
			on[n] = remote{c, a}
		}
		return names, func(name string) Node { return on[name] }, nil
	}
}

// agent returns the node's.
func (c Cluster) agent(ctx context.Context, node string) (remote, error) {
	all, err := c.agents(ctx)
	if err != nil {
		return remote{}, err
	}
	a, err := agentOn(all, node)
	return remote{c, a}, err
}

func agentOn(all []agentPod, node string) (agentPod, error) {
	i := slices.IndexFunc(all, func(a agentPod) bool { return a.node == node })
	if i < 0 {
		return agentPod{}, fmt.Errorf("no agent of Twill runs on node %q", node)
	}
	return all[i], nil
}

func (c cluster) View() View {
	return View{Kind: "cluster", Name: c.Context, Version: c.version,
		Can: Can{Trace: true, Doctor: true, Probe: true, History: true, Live: true}}
}

// Places returns the cluster's pods and Services. Which nodes share a segment of the underlay nobody knows.
func (c cluster) Places(ctx context.Context) (Places, error) {
	places := nowhere()
	found, err := c.get(ctx, "pods,services", "--all-namespaces")
	if err != nil {
		return places, err
	}
	for _, p := range found {
		id := p.Metadata.Namespace + "/" + p.Metadata.Name
		switch {
		case p.Kind == "Service" && len(p.Spec.ClusterIPs) > 0 && p.Spec.ClusterIPs[0] != "None":
			service := Service{ID: "service/" + id, Ports: []uint16{}}
			for _, port := range p.Spec.Ports {
				service.Ports = append(service.Ports, port.Port)
			}
			places.Services = append(places.Services, service)
		case p.Kind == "Pod" && !p.Spec.HostNetwork && p.Status.Phase == "Running" && len(p.addresses()) > 0:
			places.Pods = append(places.Pods, Pod{ID: id, Node: p.Spec.NodeName, Addrs: texts(p.addresses())})
		}
	}
	slices.SortFunc(places.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.ID, b.ID))
	})
	return places, nil
}

func (c cluster) Doctor(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Survey, error) {
	answers, err := ask(ctx, c.fan, func(n Node) (doctor.Diagnosis, error) { return n.Diagnose(ctx, probe, outside...) })
	all, silent := gathered(answers)
	c.unenforced(ctx, all)
	return doctor.NewSurvey(all, silent, doctor.Probes{}, doctor.Lost{}), err
}

// unenforced adds findings where nothing enforces the cluster's NetworkPolicies. Agents that do not enforce them have no
// right to read them; who has none either is not told.
func (c cluster) unenforced(ctx context.Context, all []doctor.Diagnosis) {
	if !slices.ContainsFunc(all, func(d doctor.Diagnosis) bool { return d.Policies == nil }) {
		return
	}
	out, err := c.Kubectl(ctx, "get", "networkpolicies.networking.k8s.io", "--all-namespaces", "--output=name")
	if err != nil {
		return
	}
	for i := range all {
		all[i].Unenforced(strings.Count(string(out), "networkpolicy.networking.k8s.io/"))
	}
}

// Trace asks both nodes for their part of the path, and joins the parts.
func (c cluster) Trace(ctx context.Context, src, dst string, how Tracing) (doctor.Trace, error) {
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return c.traceService(ctx, src, q, how)
	}
	outside, _ := netip.ParseAddr(dst)
	from, err := c.findEnd(ctx, src, outside)
	if err != nil {
		return doctor.Trace{}, err
	}
	to, err := c.findEnd(ctx, dst, from.addr)
	if err != nil && outside.IsValid() { // its node knows whether it can be a pod's
		to, err = end{from.node, outside, nil}, nil
	}
	if err != nil {
		return doctor.Trace{}, err
	}
	both := fan{nodes: c.agentsOn(from.node, to.node)}
	answers, err := ask(ctx, both, func(n Node) (doctor.Trace, error) {
		return n.Trace(ctx, from.addr.String(), to.addr.String(), how)
	})
	if err != nil {
		return doctor.Trace{}, err
	}
	return onePath(answers)
}

// onePath joins the parts of one or two nodes.
func onePath(answers []answer[doctor.Trace]) (doctor.Trace, error) {
	for _, a := range answers {
		if a.err != nil {
			return doctor.Trace{}, a.err
		}
	}
	if len(answers) == 1 {
		return answers[0].it, nil
	}
	return doctor.Join(answers[0].it, answers[1].it), nil
}

// findEnd finds a pod by NAMESPACE/NAME, by its name in the namespace default, by an address, or by its node, whose
// first pod it then is; other is the other end, whose family it must have.
func (c Cluster) findEnd(ctx context.Context, text string, other netip.Addr) (end, error) {
	for _, selection := range selections(text) {
		found, err := c.pods(ctx, selection...)
		if err != nil {
			return end{}, err
		}
		for _, p := range found {
			if a, ok := p.address(text, other); ok {
				return end{p.Spec.NodeName, a, p.addresses()}, nil
			}
		}
	}
	return end{}, fmt.Errorf("the cluster has no running pod %q in its network: "+
		"want NAMESPACE/POD, a pod of the namespace default, an address, or a node", text)
}

// selections returns the selections of pods to try, in order.
func selections(text string) [][]string {
	if _, err := netip.ParseAddr(text); err == nil {
		return [][]string{{"--all-namespaces", "--field-selector=status.podIP=" + text}, {"--all-namespaces"}}
	}
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return [][]string{{"--namespace=" + namespace, "--field-selector=metadata.name=" + name}}
	}
	return [][]string{
		{"--namespace=default", "--field-selector=metadata.name=" + text},
		{"--all-namespaces", "--field-selector=spec.nodeName=" + text},
	}
}

// addresses returns the pod's.
func (p pod) addresses() (all []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// address returns the address that is meant: the one that was named, or the first of the other end's family.
func (p pod) address(text string, other netip.Addr) (netip.Addr, bool) {
	if p.Spec.HostNetwork || p.Status.Phase != "Running" {
		return netip.Addr{}, false
	}
	named, err := netip.ParseAddr(text)
	for _, ip := range p.Status.PodIPs {
		a, bad := netip.ParseAddr(ip.IP)
		switch {
		case bad != nil || a == other:
		case err == nil && a == named, err != nil && (!other.IsValid() || a.Is4() == other.Is4()):
			return a, true
		}
	}
	return netip.Addr{}, false
}
