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
)

// decodeAnswer reads what a node printed as JSON.
func decodeAnswer(a answer, into any) error {
	if a.err != nil {
		return a.err
	}
	if err := json.Unmarshal(a.out, into); err != nil {
		return fmt.Errorf("node %s said no JSON (is its twillctl as new as this one?): %w", a.node, err)
	}
	return nil
}

// status is one node's, or all nodes'. A node that cannot be asked is part of the answer.
func (c cluster) status(ctx context.Context, nodes []string) (doctor.StatusReport, error) {
	all := doctor.StatusReport{Schema: doctor.Schema, Nodes: []doctor.Status{}}
	answers, err := c.askNodes(ctx, nodes, "status", "--output=json")
	for _, a := range answers {
		var r doctor.StatusReport
		if err := decodeAnswer(a, &r); err != nil {
			all.Silent = append(all.Silent, a.node+": "+err.Error())
			continue
		}
		all.Nodes = append(all.Nodes, r.Nodes...)
	}
	return all, err
}

// reports are the doctor's on several nodes.
type reports struct {
	Schema int             `json:"schema"`
	Nodes  []doctor.Report `json:"nodes"`
	Silent []string        `json:"silent,omitempty"` // nodes that could not be asked, and why
	single bool            // the one node's report is all there is to say
}

func (c cluster) doctor(ctx context.Context, nodes []string, probe bool) (reports, error) {
	all := reports{Schema: doctor.Schema, Nodes: []doctor.Report{}}
	answers, err := c.askNodes(ctx, nodes, "doctor", "--output=json", fmt.Sprintf("--probe=%t", probe))
	for _, a := range answers {
		var r doctor.Report
		if err := decodeAnswer(a, &r); err != nil {
			all.Silent = append(all.Silent, a.node+": "+err.Error())
			continue
		}
		all.Nodes = append(all.Nodes, r)
	}
	return all, err
}

func (r reports) findings() bool {
	n := len(r.Silent)
	for _, node := range r.Nodes {
		n += len(node.Findings)
	}
	return n > 0
}

func (r reports) writeJSON(w io.Writer) error {
	if r.single {
		return r.Nodes[0].WriteJSON(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

func (r reports) writeText(w io.Writer) error {
	for _, node := range r.Nodes {
		if err := node.WriteText(w); err != nil {
			return err
		}
	}
	for _, s := range r.Silent {
		fmt.Fprintln(w, "✗", s)
	}
	return nil
}

var errNoNode = errors.New("which node? want the name of one of the cluster's")

// plan is one node's, as text.
func (c cluster) plan(ctx context.Context, w io.Writer, nodes []string) error {
	if len(nodes) == 0 {
		return errNoNode
	}
	a, err := c.agent(ctx, nodes[0])
	if err != nil {
		return err
	}
	out, err := c.ask(ctx, a, "plan")
	if err != nil {
		return err
	}
	if _, err := w.Write(out); err != nil {
		return err
	}
	if slices.Contains(strings.Split(string(out), "\n"), nothingToChange) {
		return nil
	}
	return errFindings
}

// bundle is the report of one node, and the end of its agent's log, which kubectl has.
func (c cluster) bundle(ctx context.Context, nodes []string, _ string) ([]member, error) {
	if len(nodes) == 0 {
		return nil, errNoNode
	}
	a, err := c.agent(ctx, nodes[0])
	if err != nil {
		return nil, err
	}
	out, err := c.ask(ctx, a, "report", "--file=-")
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
	// That there was no container before this one, or that its log is gone, is no error.
	if log, err := c.log(ctx, a, "--previous"); err == nil {
		files = append(files, member{"twilld-previous.log", log})
	}
	return files, nil
}

// mostLines is how many lines of the log's end are asked for: most of them are shorter than a hundred bytes. --limit-bytes
// would cut off the end.
const mostLines = 10000

// log is the end of an agent's log.
func (c cluster) log(ctx context.Context, a agentPod, flags ...string) ([]byte, error) {
	args := []string{"logs", "--namespace=" + a.namespace, a.name, "--container=" + agentContainer, fmt.Sprintf("--tail=%d", mostLines)}
	out, err := c.kubectl(ctx, append(args, flags...)...)
	return out[max(0, len(out)-mostLog):], err
}

// trace asks both nodes about their part of the way, and joins what they say.
func (c cluster) trace(ctx context.Context, t *target, src, dst string) (doctor.Trip, error) {
	from, err := c.findEnd(ctx, src, netip.Addr{})
	if err != nil {
		return doctor.Trip{}, err
	}
	to, err := c.findEnd(ctx, dst, from.addr)
	if err != nil {
		return doctor.Trip{}, err
	}
	all, err := c.agents(ctx)
	if err != nil {
		return doctor.Trip{}, err
	}
	var both []agentPod
	for _, e := range []end{from, to} {
		a, err := agentOn(all, e.node)
		if err != nil {
			return doctor.Trip{}, err
		}
		both = append(both, a)
	}
	if from.node == to.node {
		both = both[:1]
	}
	args := []string{"trace", "--output=json", fmt.Sprintf("--probe=%t", t.probe), fmt.Sprintf("--live=%t", t.live), "--for=" + t.during.Round(time.Millisecond).String(),
		from.addr.String(), to.addr.String()}
	return joinAnswers(c.askAll(ctx, both, args...))
}

func joinAnswers(answers []answer) (doctor.Trip, error) {
	var trips []doctor.Trip
	for _, a := range answers {
		var trip doctor.Trip
		if err := decodeAnswer(a, &trip); err != nil {
			return doctor.Trip{}, err
		}
		trips = append(trips, trip)
	}
	if len(trips) == 1 {
		return trips[0], nil
	}
	return doctor.Join(trips[0], trips[1]), nil
}

// findEnd finds a pod by NAMESPACE/NAME, by its name in the namespace default, by an address, or by its node, whose
// first pod it is then; other is the other end, whose family counts.
func (c cluster) findEnd(ctx context.Context, text string, other netip.Addr) (end, error) {
	for _, selection := range selections(text) {
		found, err := c.pods(ctx, selection...)
		if err != nil {
			return end{}, err
		}
		for _, p := range found {
			if a, ok := p.address(text, other); ok {
				return end{node: p.Spec.NodeName, addr: a}, nil
			}
		}
	}
	return end{}, fmt.Errorf("the cluster has no running pod %q in its network: want NAMESPACE/POD, a pod of the namespace default, an address, or a node", text)
}

// selections are the questions that may find what is meant, in their order.
func selections(text string) [][]string {
	if _, err := netip.ParseAddr(text); err == nil {
		return [][]string{{"--all-namespaces", "--field-selector=status.podIP=" + text}, {"--all-namespaces"}}
	}
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return [][]string{{"--namespace=" + namespace, "--field-selector=metadata.name=" + name}}
	}
	return [][]string{{"--namespace=default", "--field-selector=metadata.name=" + text}, {"--all-namespaces", "--field-selector=spec.nodeName=" + text}}
}

// address is the pod's that is meant: the one that was named, or the first of the other end's family.
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
