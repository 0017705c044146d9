//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// chained is the conflist of flannel's habit, with portmap as a plugin of its own, instead of the manifest's.
func chained(t *testing.T, manifest string) string {
	t.Helper()
	const one = `{"type": "twill", "capabilities": {"portMappings": true, "bandwidth": true}}`
	const two = `{"type": "twill", "hairpinMode": true}, {"type": "portmap", "capabilities": {"portMappings": true}}`
	if !strings.Contains(manifest, one) {
		t.Fatalf("the manifest's conflist has no %s", one)
	}
	return strings.Replace(manifest, one, two, 1)
}

// hostPortPod is a pod on node1 with a host port and a limit of its bandwidth.
func hostPortPod(name string, port int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  annotations: {kubernetes.io/egress-bandwidth: 100M}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: probe, image: %q, args: [serve], ports: [{containerPort: 8080, hostPort: %d}]}]
`, name, cluster.PodImage, port)
}

// TestConflistChanges: pods with host ports outlive a change between a chain of plugins and Twill alone, both ways, and
// leave nothing when they are deleted under the other one.
func TestConflistChanges(t *testing.T) {
	manifest, err := spec.Manifest()
	must(t, err)
	t.Cleanup(func() {
		if err := install(context.Background(), manifest); err != nil {
			t.Error(err)
		}
	})
	must(t, install(t.Context(), chained(t, manifest)))
	first := startHostPort(t, "first", 18081)
	must(t, install(t.Context(), manifest))
	second := startHostPort(t, "second", 18082)
	first.works(t)
	first.delete(t)
	must(t, install(t.Context(), chained(t, manifest)))
	second.works(t)
	second.delete(t)
	noLeak(t, "node1")
}

// install applies a manifest and has the agents read its ConfigMap.
func install(ctx context.Context, manifest string) error {
	if err := spec.Apply(ctx, manifest); err != nil {
		return err
	}
	if _, err := spec.Kubectl(ctx, "-n", "kube-twill", "rollout", "restart", "daemonset/twill"); err != nil {
		return err
	}
	return spec.WaitReady(ctx)
}

type hostPort struct {
	pod  string
	port int
}

func startHostPort(t *testing.T, pod string, port int) hostPort {
	t.Helper()
	h := hostPort{pod, port}
	apply(t, hostPortPod(pod, port))
	kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
	h.works(t)
	return h
}

func (h hostPort) works(t *testing.T) {
	t.Helper()
	for i, a := range spec.Underlay(1) {
		target := "tcp://" + netip.AddrPortFrom(a, uint16(h.port)).String()
		want := h.pod + " " + spec.Outside()[i].String()
		await(t, target+" to answer "+want, testwait.Limit, func() (bool, error) { // a pod is ready before it listens
			out, err := spec.Host("outside").Exec(t.Context(), spec.PodProgram(), "probe", target)
			return strings.Contains(out, want), errors.Join(err, errors.New(out))
		})
	}
}

// delete deletes the pod, and checks that its rules are gone and its shaping device.
func (h hostPort) delete(t *testing.T) {
	t.Helper()
	kubectl(t, "delete", "pod", h.pod)
	await(t, "the host port's rules to go", testwait.Limit, func() (bool, error) {
		rules, err := spec.Host("node1").Exec(t.Context(), "sh", "-ec", "PATH=$PATH:/usr/sbin:/sbin; iptables-save; ip6tables-save; ip -o link show type ifb")
		return err == nil && !strings.Contains(rules, fmt.Sprint(h.port)) && !strings.Contains(rules, "ifb"), err
	})
}
