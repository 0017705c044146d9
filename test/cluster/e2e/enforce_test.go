//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// enforce gives the agents --network-policy for the time of the test.
func enforce(t testing.TB) {
	t.Helper()
	rights, err := os.ReadFile("../../../deploy/network-policy/rbac.yaml")
	must(t, err)
	apply(t, string(rights))
	must(t, spec.AgentFlag(t.Context(), "--network-policy"))
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := spec.Kubectl(ctx, "--namespace=kube-twill", "rollout", "undo", "daemonset/twill"); err != nil {
			t.Error(err)
		}
		if err := spec.WaitReady(ctx); err != nil {
			t.Error(err)
		}
	})
}

// askOnce is a pod that asks a target in an init container, with its first packet.
func askOnce(name, app, node, target string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: %s}}
spec:
  nodeName: %s
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  initContainers: [{name: ask, image: %[4]q, args: [probe, %[5]q]}]
  containers: [{name: probe, image: %[4]q, args: [serve]}]
`, name, app, node, cluster.PodImage, target)
}

// TestEnforce: agents with --network-policy enforce what TestNetworkPolicy leaves to another engine.
func TestEnforce(t *testing.T) {
	pods := probes(t)
	stream, err := spec.Host("node2").Stream(pods[1].Addrs[0], 10*time.Millisecond)
	must(t, err)
	defer stream.Close()
	from := stream.Mark()
	enforce(t)
	if loss, err := stream.Between(t.Context(), from, stream.Mark()); err != nil || loss.Lost > 0 {
		t.Errorf("while policies were switched on: %v, %v", loss, err)
	}
	matrix(t)
	g := startPods(t)
	stop := g.watch(t)

	t.Run("Probes", func(t *testing.T) { // the kubelet's own reach a pod that nobody else may
		apply(t, strings.ReplaceAll(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: silent, namespace: default}
spec: {podSelector: {matchLabels: {app: silent}}, policyTypes: [Ingress, Egress]}
---
apiVersion: v1
kind: Pod
metadata: {name: silent, namespace: default, labels: {app: silent}}
spec:
  nodeName: node3
  terminationGracePeriodSeconds: 1
  containers:
  - name: probe
    image: "IMAGE"
    args: [serve]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`, "IMAGE", cluster.PodImage))
		kubectl(t, "wait", "--for=condition=Ready", "pod/silent", "--timeout=60s")
	})
	t.Run("FirstPacket", func(t *testing.T) {
		// A datagram to a pod that nobody isolates passes at once. What a pod on another node allows it, it gets when that
		// node's agent knows its address: a SYN is sent again.
		free, guarded := g.friends[0].Targets()[1], g.guarded.Targets()[0]
		apply(t, strings.Join([]string{askOnce("early-friend", "friend1", "node2", guarded), askOnce("early-free", "friend1", "node2", free),
			askOnce("early-stranger", "stranger1", "node2", guarded)}, "---\n"))
		for pod, answered := range map[string]bool{"early-friend": true, "early-free": true, "early-stranger": false} {
			kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
			if log := kubectl(t, "logs", pod, "--container=ask"); strings.Contains(log, `"Error"`) == answered {
				t.Errorf("%s is answered: %v, want %v: %s", pod, !answered, answered, log)
			}
		}
	})
	t.Run("AgentDown", func(t *testing.T) {
		for n := 1; n <= 2; n++ {
			must(t, spec.KillContainer(t.Context(), spec.NodeName(n), "twilld"))
		}
		g.holds(t, "while agents are killed")
		must(t, spec.WaitReady(t.Context()))
		g.holds(t, "when the agents were killed")
	})
	t.Run("Altered", func(t *testing.T) {
		onNode(t, 1, "nft delete table ip twill-policy; nft delete table ip6 twill-policy")
		await(t, "the tables to be put back", testwait.Limit, func() (bool, error) {
			out := onNode(t, 1, "nft list tables")
			return strings.Count(out, "twill-policy") == 3, fmt.Errorf("%s", out) // and that of the bridge
		})
		g.holds(t, "when the tables were deleted")
	})
	t.Run("APIDown", func(t *testing.T) {
		must(t, spec.StopAPI())
		onNode(t, 1, "pkill -KILL -x twilld")
		testwait.Pause(t, 15*time.Second, "the agent that starts again keeps the rules that it cannot ask about")
		tables := onNode(t, 1, "nft list table ip twill-policy")
		must(t, spec.StartAPI(t.Context()))
		if !strings.Contains(tables, "goto in-") {
			t.Errorf("an agent that started without the API server left no policies:\n%s", tables)
		}
		must(t, spec.WaitReady(t.Context()))
		g.holds(t, "when the API server was away")
	})
	stop()
	matrix(t)
	t.Run("Reboot", func(t *testing.T) { // without the API server no pod of the node gets a network
		must(t, spec.StopAPI())
		must(t, spec.Reboot(2))
		testwait.Pause(t, 15*time.Second, "no pod of the node gets a network")
		if files := onNode(t, 2, "ls /run/flannel || true"); strings.Contains(files, "subnet.env") {
			t.Errorf("pods could start before policies are known: there is %s", files)
		}
		must(t, spec.StartAPI(t.Context()))
		must(t, spec.WaitReady(t.Context()))
		await(t, "the pods to come back with the policy", 2*time.Minute, func() (bool, error) {
			wrong, err := findPods(t).wrong(t.Context()) // nobody can ask from a pod that is not back
			return err == nil && wrong == "", errors.Join(err, errors.New(wrong))
		})
	})
}
