package target

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
	"time"
)

// Cluster is how kubectl reaches a cluster. The agent's image has twillctl, which looks at its own node, through "kubectl
// exec": no port is opened for it, and the API server decides who may do it.
type Cluster struct {
	Context, Kubeconfig string // kubectl's; empty: its defaults
	Namespace           string // of the agents' DaemonSet
}

// Where the agents are: the manifest's namespace, label and container.
const (
	AgentNamespace = "kube-twill"
	AgentLabel     = "app.kubernetes.io/name=twill"
	AgentContainer = "twilld"
)

// maxOutput is how many bytes kubectl may print.
const maxOutput = 64 << 20

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

// Kubectl runs kubectl and returns what it printed.
func (c Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.feed(ctx, nil, args...)
}

// command is kubectl with the flags that say which cluster.
func (c Cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	var flags []string
	if c.Context != "" {
		flags = append(flags, "--context="+c.Context)
	}
	if c.Kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+c.Kubeconfig)
	}
	return exec.CommandContext(ctx, "kubectl", append(flags, args...)...)
}

// Interrupted reports whether ctx is done, or is in a moment: Ctrl-C also ends kubectl, which may be first.
func Interrupted(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// feed runs kubectl with an input.
func (c Cluster) feed(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	var stdout, stderr bounded
	cmd := c.command(ctx, args...)
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
func (c Cluster) pods(ctx context.Context, selection ...string) ([]pod, error) {
	return c.get(ctx, "pods", selection...)
}

// get lists objects of the given kinds.
func (c Cluster) get(ctx context.Context, kinds string, selection ...string) ([]pod, error) {
	out, err := c.Kubectl(ctx, append([]string{"get", kinds, "--output=json"}, selection...)...)
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
func (c Cluster) agents(ctx context.Context) ([]agentPod, error) {
	found, err := c.get(ctx, "daemonsets.apps,pods", "--namespace="+c.Namespace, "--selector="+AgentLabel)
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
			owner.Metadata.Name, c.Namespace)
	}
	slices.SortFunc(all, func(a, b agentPod) int { return strings.Compare(a.node, b.node) })
	return all, nil
}

// daemonSet returns the agents' DaemonSet.
func (c Cluster) daemonSet(found []pod) (pod, error) {
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
			"say with --namespace where Twill is installed", c.Namespace, AgentLabel)
	case 1:
		return sets[0], nil
	}
	return pod{}, fmt.Errorf("the namespace %s has several DaemonSets with the label %s (%s): only Twill's may have it",
		c.Namespace, AgentLabel, strings.Join(names, ", "))
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

// ask runs twillctl on the node. Exit code 1, with which it reports findings, is no error: found is set instead. kubectl
// fails with it too, but without output.
func (r remote) ask(ctx context.Context, input io.Reader, args ...string) (out []byte, found bool, err error) {
	command := []string{"exec", "--namespace=" + r.namespace, r.name, "--container=" + AgentContainer,
		fmt.Sprintf("--stdin=%t", input != nil), "--", "twillctl"}
	out, err = r.feed(ctx, input, append(command, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && len(out) > 0 {
		return out, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("ask node %s: %w", r.node, err)
	}
	return out, false, nil
}
