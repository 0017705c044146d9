package lab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/internal/atomicfile"
)

// podsFile lists the lab's pods among the manifests that agents enforce.
const podsFile = "pods.json"

// policyDir holds the manifests.
func (l *Lab) policyDir() string { return filepath.Join(l.dir, "policies") }

// policyFlags are what an agent is told about network policies.
func (l *Lab) policyFlags() []string {
	if !l.spec.NetworkPolicy {
		return nil
	}
	return []string{"--network-policy", "--network-policy-file=" + l.policyDir()}
}

// ApplyManifest gives the agents a manifest, in place of an earlier one of this name.
func (l *Lab) ApplyManifest(name string, text []byte) error {
	if !l.spec.NetworkPolicy {
		return fmt.Errorf("lab %s has no network policies: bring it up with --network-policy", l.spec.Name)
	}
	if name != filepath.Base(name) || name == podsFile {
		return fmt.Errorf("manifest %q: want the name of a file, and not %s", name, podsFile)
	}
	return atomicfile.Write(filepath.Join(l.policyDir(), name), text, 0o644)
}

// DeleteManifest takes a manifest away from the agents.
func (l *Lab) DeleteManifest(name string) error {
	return os.Remove(filepath.Join(l.policyDir(), filepath.Base(name)))
}

// Label makes a pod one of a namespace, with labels beside those that all pods of a lab have: node and pod.
func (p *Pod) Label(namespace string, labels map[string]string) error {
	return p.Node.lab.change(func(*state) {
		for _, ps := range p.Node.state.Pods {
			if ps.Name == p.Name {
				ps.Namespace, ps.Labels = namespace, labels
			}
		}
	})
}

// kubeName is a pod's name in manifests.
func kubeName(node, pod string) string { return node + "-" + pod }

// kubeArgs are what a runtime of Kubernetes tells the plugin of a pod, in CNI_ARGS.
func (p *Pod) kubeArgs() [][2]string {
	if !p.Node.lab.spec.NetworkPolicy {
		return nil
	}
	namespace := "default"
	p.Node.lab.view(func(*state) {
		for _, ps := range p.Node.state.Pods {
			if ps.Name == p.Name {
				namespace = cmp.Or(ps.Namespace, namespace)
			}
		}
	})
	return [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", kubeName(p.Node.Name, p.Name)}}
}

// writePods lists the pods for the agents, as kubectl get pods does. The directory goes with the lab.
func (l *Lab) writePods() error {
	items := []object{}
	for _, n := range l.state.Nodes {
		for _, p := range n.Pods {
			labels := map[string]string{"node": n.Name, "pod": p.Name}
			maps.Copy(labels, p.Labels)
			ips := []object{}
			for _, a := range p.Addrs {
				ips = append(ips, object{"ip": a})
			}
			items = append(items, object{"kind": "Pod",
				"metadata": object{"name": kubeName(n.Name, p.Name), "namespace": cmp.Or(p.Namespace, "default"), "labels": labels},
				"spec":     object{"nodeName": n.Name}, "status": object{"podIPs": ips}})
		}
	}
	data, err := json.MarshalIndent(object{"kind": "List", "items": items}, "", " ")
	if err != nil {
		return fmt.Errorf("encode the lab's pods: %w", err)
	}
	if err := os.MkdirAll(l.policyDir(), fs.FileMode(0o755)); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(l.policyDir(), podsFile), data, 0o644)
}
