package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// cluster is a Kubernetes cluster, seen through "kubectl exec": the agent's image has twillctl, which looks at its
// own node. No port is opened for it, and the API server decides who may do it.
type cluster struct {
	context, kubeconfig string // kubectl's; empty: its defaults
	namespace           string // of the agents' DaemonSet
}

// Where the agents are: the manifest's namespace, label and container.
const (
	agentNamespace = "kube-twill"
	agentLabel     = "app.kubernetes.io/name=twill"
	agentContainer = "twilld"
	maxConcurrent  = 16       // nodes that are asked at the same time
	maxOutput      = 64 << 20 // bytes that kubectl may print
)

// agentPod is the pod of the agent on a node.
type agentPod struct{ node, namespace, name string }

// pod is a pod, a DaemonSet or a Service, as far as it matters here.
type pod struct {
	Kind     string
	Metadata struct {
		Name, Namespace, UID string
		OwnerReferences      []struct {
			Kind, UID  string
			Controller bool
		}
	}
	Spec struct {
		NodeName    string
		HostNetwork bool
		ClusterIPs  []string // of a Service
		Ports       []struct{ Port uint16 }
	}
	Status struct {
		Phase  string
		PodIPs []struct{ IP string }
	}
}

// kubectl runs it and returns what it printed.
func (c cluster) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.feed(ctx, nil, args...)
}

// feed runs kubectl with an input.
func (c cluster) feed(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	var flags []string
	if c.context != "" {
		flags = append(flags, "--context="+c.context)
	}
	if c.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+c.kubeconfig)
	}
	var stdout, stderr bounded
	cmd := exec.CommandContext(ctx, "kubectl", append(flags, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		err = fmt.Errorf("kubectl %s: %w: %s", args[0], err, said)
	}
	return stdout.Bytes(), err
}

// bounded is a buffer of at most maxOutput bytes: a node must not fill the memory of the caller.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxOutput {
		return 0, fmt.Errorf("its output exceeds %d bytes", maxOutput)
	}
	return b.Buffer.Write(p)
}

// ReadFrom keeps io.Copy from bypassing Write.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// pods lists the pods of a selection.
func (c cluster) pods(ctx context.Context, selection ...string) ([]pod, error) {
	return c.get(ctx, "pods", selection...)
}

// get lists objects of the given kinds.
func (c cluster) get(ctx context.Context, kinds string, selection ...string) ([]pod, error) {
	out, err := c.kubectl(ctx, append([]string{"get", kinds, "--output=json"}, selection...)...)
	if err != nil {
		return nil, err
	}
	var list struct{ Items []pod }
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read kubectl's list of %s: %w", kinds, err)
	}
	return list.Items, nil
}

// agents returns the agents' pods, sorted by node: those of the one DaemonSet with the agents' label in the agents'
// namespace. The label alone proves nothing: anybody can give it to a pod.
func (c cluster) agents(ctx context.Context) ([]agentPod, error) {
	found, err := c.get(ctx, "daemonsets.apps,pods", "--namespace="+c.namespace, "--selector="+agentLabel)
	if err != nil {
		return nil, err
	}
	owner, err := c.daemonSet(found)
	if err != nil {
		return nil, err
	}
	var all []agentPod
	for _, p := range found {
		if p.Spec.NodeName != "" && p.ownedBy(owner) {
			all = append(all, agentPod{p.Spec.NodeName, p.Metadata.Namespace, p.Metadata.Name})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the DaemonSet %s of the namespace %s has no pods on any node",
			owner.Metadata.Name, c.namespace)
	}
	slices.SortFunc(all, func(a, b agentPod) int { return strings.Compare(a.node, b.node) })
	return all, nil
}

// daemonSet returns the agents' DaemonSet.
func (c cluster) daemonSet(found []pod) (pod, error) {
	var sets []pod
	var names []string
	for _, p := range found {
		if p.Kind == "DaemonSet" {
			sets, names = append(sets, p), append(names, p.Metadata.Name)
		}
	}
	switch len(sets) {
	case 0:
		return pod{}, fmt.Errorf("the namespace %s has no DaemonSet with the label %s: "+
			"say with --namespace where Twill is installed", c.namespace, agentLabel)
	case 1:
		return sets[0], nil
	}
	return pod{}, fmt.Errorf("the namespace %s has several DaemonSets with the label %s (%s): only Twill's may have it",
		c.namespace, agentLabel, strings.Join(names, ", "))
}

// ownedBy reports whether a DaemonSet controls the pod.
func (p pod) ownedBy(set pod) bool {
	for _, o := range p.Metadata.OwnerReferences {
		if p.Kind == "Pod" && o.Kind == "DaemonSet" && o.Controller && o.UID == set.Metadata.UID {
			return true
		}
	}
	return false
}

// agent returns the agent of a node.
func (c cluster) agent(ctx context.Context, node string) (agentPod, error) {
	all, err := c.agents(ctx)
	if err != nil {
		return agentPod{}, err
	}
	return agentOn(all, node)
}

func agentOn(all []agentPod, node string) (agentPod, error) {
	i := slices.IndexFunc(all, func(a agentPod) bool { return a.node == node })
	if i < 0 {
		return agentPod{}, fmt.Errorf("no agent of Twill runs on node %q", node)
	}
	return all[i], nil
}

// ask runs twillctl on a node. Exit code 1, with which it reports findings, is no error: found is set instead.
// kubectl fails with it too, but without output.
func (c cluster) ask(ctx context.Context, a agentPod, args ...string) (out []byte, found bool, err error) {
	return c.askWith(ctx, a, nil, args...)
}

// askWith is ask with an input.
func (c cluster) askWith(ctx context.Context, a agentPod, input io.Reader, args ...string) (
	out []byte, found bool, err error) {
	command := []string{"exec", "--namespace=" + a.namespace, a.name, "--container=" + agentContainer,
		fmt.Sprintf("--stdin=%t", input != nil), "--", "twillctl"}
	out, err = c.feed(ctx, input, append(command, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && len(out) > 0 {
		return out, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("ask node %s: %w", a.node, err)
	}
	return out, false, nil
}

// answer is the output of twillctl on a node, or why there is none.
type answer struct {
	agentPod
	out []byte
	err error
}

// askAll asks several nodes at once.
func (c cluster) askAll(ctx context.Context, all []agentPod, args ...string) []answer {
	answers := make([]answer, len(all))
	var g errgroup.Group
	g.SetLimit(maxConcurrent)
	for i, a := range all {
		g.Go(func() error {
			out, _, err := c.ask(ctx, a, args...)
			answers[i] = answer{a, out, err}
			return nil
		})
	}
	_ = g.Wait() // errors are in the answers
	return answers
}

// askNodes asks one node, or all if none is named.
func (c cluster) askNodes(ctx context.Context, nodes []string, args ...string) ([]answer, error) {
	all, err := c.agents(ctx)
	if err != nil {
		return nil, err
	}
	if len(nodes) > 0 {
		a, err := agentOn(all, nodes[0])
		if err != nil {
			return nil, err
		}
		all = []agentPod{a}
	}
	return c.askAll(ctx, all, args...), nil
}
