package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
)

// decodeAnswer decodes the JSON that a node printed.
func decodeAnswer(a answer, into any) error {
	if a.err != nil {
		return a.err
	}
	if err := json.Unmarshal(a.out, into); err != nil {
		return fmt.Errorf("node %s printed no JSON (is its twillctl as new as this one?): %w", a.node, err)
	}
	return nil
}

// decodeAll decodes the JSON of all nodes. silent has those that could not be asked, each with the reason.
func decodeAll[T any](answers []answer) (all []T, silent []string) {
	all = []T{}
	for _, a := range answers {
		var v T
		if err := decodeAnswer(a, &v); err != nil {
			silent = append(silent, a.node+": "+err.Error())
			continue
		}
		all = append(all, v)
	}
	return all, silent
}

// status returns the status of one node or all nodes. A node that cannot be asked is part of it.
func (c cluster) status(ctx context.Context, nodes []string) (doctor.StatusReport, error) {
	answers, err := c.askNodes(ctx, nodes, "status", "--output=json")
	reports, silent := decodeAll[doctor.StatusReport](answers)
	all := doctor.StatusReport{Schema: doctor.Schema, Nodes: []doctor.Status{}, Silent: silent}
	for _, r := range reports {
		all.Nodes = append(all.Nodes, r.Nodes...)
	}
	return all, err
}

func (c cluster) doctor(ctx context.Context, nodes []string, probe bool) (doctor.Survey, error) {
	answers, err := c.askNodes(ctx, nodes, "doctor", "--output=json", fmt.Sprintf("--probe=%t", probe))
	all, silent := decodeAll[doctor.Diagnosis](answers)
	c.unenforced(ctx, all)
	return doctor.NewSurvey(all, silent, doctor.Probes{}, doctor.Lost{}), err
}

// unenforced adds findings where nothing enforces the cluster's NetworkPolicies. Agents that do not enforce them have no
// right to read them; who has none either is not told.
func (c cluster) unenforced(ctx context.Context, all []doctor.Diagnosis) {
	if !slices.ContainsFunc(all, func(d doctor.Diagnosis) bool { return d.Policies == nil }) {
		return
	}
	out, err := c.kubectl(ctx, "get", "networkpolicies.networking.k8s.io", "--all-namespaces", "--output=name")
	if err != nil {
		return
	}
	for i := range all {
		all[i].Unenforced(strings.Count(string(out), "networkpolicy.networking.k8s.io/"))
	}
}

var errNoNode = errors.New("which node? want the name of one of the cluster's")

// plan prints the plan of a node.
func (c cluster) plan(ctx context.Context, w io.Writer, nodes []string) error {
	if len(nodes) == 0 {
		return errNoNode
	}
	a, err := c.agent(ctx, nodes[0])
	if err != nil {
		return err
	}
	out, found, err := c.ask(ctx, a, "plan")
	if err != nil {
		return err
	}
	if _, err := w.Write(out); err != nil {
		return err
	}
	if found {
		return errFindings
	}
	return nil
}

// bundle returns the report of a node, and the end of its agent's log, which kubectl has.
func (c cluster) bundle(ctx context.Context, nodes []string, _ string) ([]member, error) {
	if len(nodes) == 0 {
		return nil, errNoNode
	}
	a, err := c.agent(ctx, nodes[0])
	if err != nil {
		return nil, err
	}
	out, _, err := c.ask(ctx, a, "report", "--file=-")
	if err != nil {
		return nil, err
	}
	files, err := readTar(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("read the report of node %s: %w", a.node, err)
	}
	log, err := c.log(ctx, a)
	if err != nil {
		return nil, err
	}
	files = append(files, member{"twilld.log", log})
	// It is no error that there was no container before this one, or that its log is gone.
	if log, err := c.log(ctx, a, "--previous"); err == nil {
		files = append(files, member{"twilld-previous.log", log})
	}
	return files, nil
}

// maxLines is how many lines of the log's end to ask for: most of them are shorter than a hundred bytes.
// --limit-bytes would cut off the end.
const maxLines = 10000

// log returns the end of an agent's log.
func (c cluster) log(ctx context.Context, a agentPod, flags ...string) ([]byte, error) {
	args := []string{"logs", "--namespace=" + a.namespace, a.name, "--container=" + agentContainer,
		fmt.Sprintf("--tail=%d", maxLines)}
	out, err := c.kubectl(ctx, append(args, flags...)...)
	return out[max(0, len(out)-maxLog):], err
}

// trace asks both nodes for their part of the path, and joins the parts.
func (c cluster) trace(ctx context.Context, t *target, src, dst string) (doctor.Trace, error) {
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return c.traceService(ctx, t, src, q)
	}
	from, err := c.findEnd(ctx, src, netip.Addr{})
	if err != nil {
		return doctor.Trace{}, err
	}
	to, err := c.findEnd(ctx, dst, from.addr)
	if err != nil {
		return doctor.Trace{}, err
	}
	all, err := c.agents(ctx)
	if err != nil {
		return doctor.Trace{}, err
	}
	var both []agentPod
	for _, e := range []end{from, to} {
		a, err := agentOn(all, e.node)
		if err != nil {
			return doctor.Trace{}, err
		}
		both = append(both, a)
	}
	if from.node == to.node {
		both = both[:1]
	}
	args := []string{"trace", "--output=json",
		fmt.Sprintf("--probe=%t", t.options.Probe), fmt.Sprintf("--live=%t", t.live),
		"--for=" + t.during.Round(time.Millisecond).String(), from.addr.String(), to.addr.String()}
	return joinAnswers(c.askAll(ctx, both, args...))
}

func joinAnswers(answers []answer) (doctor.Trace, error) {
	var traces []doctor.Trace
	for _, a := range answers {
		var trace doctor.Trace
		if err := decodeAnswer(a, &trace); err != nil {
			return doctor.Trace{}, err
		}
		traces = append(traces, trace)
	}
	if len(traces) == 1 {
		return traces[0], nil
	}
	return doctor.Join(traces[0], traces[1]), nil
}

// findEnd finds a pod by NAMESPACE/NAME, by its name in the namespace default, by an address, or by its node, whose
// first pod it then is; other is the other end, whose family it must have.
func (c cluster) findEnd(ctx context.Context, text string, other netip.Addr) (end, error) {
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
