//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// policy lets the pod "guarded" speak with the pods "friend1" and "friend2" alone.
const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded, namespace: default}
spec:
  podSelector: {matchLabels: {app: guarded}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [friend1, friend2]}]}}]}]
  egress: [{to: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [friend1, friend2]}]}}]}]
`

// guard is a pod on node1 that a NetworkPolicy guards, and pods on two nodes that may speak with it, or may not.
type guard struct {
	guarded            cluster.Pod
	friends, strangers []cluster.Pod
}

// startGuard starts kube-router's engine on every node, the pods and the policy, and waits until the engine enforces it.
func startGuard(t testing.TB) guard {
	t.Helper()
	t.Cleanup(func() {
		if err := spec.RemoveKubeRouter(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, spec.InstallKubeRouter(t.Context()))
	return startPods(t)
}

// startPods starts the pods and the policy, and waits until the policy is enforced.
func startPods(t testing.TB) guard {
	t.Helper()
	manifests := []string{podsOn("guarded", "node1", 1)}
	for n := 1; n <= 2; n++ {
		manifests = append(manifests, podsOn(fmt.Sprint("friend", n), spec.NodeName(n), 1), podsOn(fmt.Sprint("stranger", n), spec.NodeName(n), 1))
	}
	apply(t, strings.Join(append(manifests, policy), "---\n"))
	g := findPods(t)
	await(t, "the policy to be enforced", testwait.Limit, func() (bool, error) {
		wrong, err := g.wrong(t.Context())
		if err == nil && wrong != "" {
			err = fmt.Errorf("%s", wrong)
		}
		return err == nil, err
	})
	return g
}

// findPods finds the pods.
func findPods(t testing.TB) guard {
	t.Helper()
	one := func(app string) cluster.Pod {
		kubectl(t, "rollout", "status", "deployment/"+app, "--timeout=90s")
		pods, err := spec.Pods(t.Context(), "app="+app)
		must(t, err)
		if len(pods) != 1 {
			t.Fatalf("there are %d pods %s, want 1", len(pods), app)
		}
		return pods[0]
	}
	return guard{one("guarded"), []cluster.Pod{one("friend1"), one("friend2")}, []cluster.Pod{one("stranger1"), one("stranger2")}}
}

// wrong says what is not as the policy has it: what passes that it denies, and what it allows and does not pass.
func (g guard) wrong(ctx context.Context) (string, error) {
	var wrong strings.Builder
	ask := func(from, to cluster.Pod, allowed bool) error {
		// The engine lets echo requests pass.
		targets := slices.DeleteFunc(to.Targets(), func(target string) bool { return strings.HasPrefix(target, "icmp") })
		replies, err := spec.Probe(ctx, from.Name, targets...)
		for _, r := range replies {
			if (r.Error == "") != allowed {
				fmt.Fprintf(&wrong, "%s asks %s: %s%s\n", from.Name, r.Target, r.Answer, r.Error)
			}
		}
		return err
	}
	for n, s := range g.strangers {
		for _, err := range []error{ask(s, g.guarded, false), ask(g.guarded, s, false), ask(s, g.friends[n], true)} {
			if err != nil {
				return "", err
			}
		}
	}
	for _, f := range g.friends {
		for _, err := range []error{ask(f, g.guarded, true), ask(g.guarded, f, true)} {
			if err != nil {
				return "", err
			}
		}
	}
	return wrong.String(), nil
}

// holds checks that the policy is enforced now.
func (g guard) holds(t *testing.T, when string) {
	t.Helper()
	wrong, err := g.wrong(t.Context())
	must(t, err)
	if wrong != "" {
		t.Errorf("%s the policy is not enforced:\n%s", when, wrong)
		for n := 1; n <= 2; n++ {
			t.Logf("%s:\n%s", spec.NodeName(n), onNode(t, n, "iptables -S FORWARD; nft list tables"))
		}
	}
}

// watch lets strangers ask all the time until the returned function is called; an answer is an error.
func (g guard) watch(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, len(g.strangers))
	for _, s := range g.strangers {
		go func() {
			asked := 0
			for ; ctx.Err() == nil; asked++ {
				replies, _ := spec.Probe(context.WithoutCancel(ctx), s.Name, g.guarded.Targets()[0])
				if len(replies) == 1 && replies[0].Error == "" {
					ended <- fmt.Errorf("%s was answered by %s after %d attempts", s.Name, replies[0].Target, asked)
					return
				}
			}
			ended <- nil
		}()
	}
	return func() {
		t.Helper()
		cancel()
		for range g.strangers {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

// TestNetworkPolicy: what an engine of NetworkPolicies denies stays denied, whatever the agent does with its own rules:
// when it starts, when it is killed, and when it puts back what somebody deleted. TestMigration shows the same for the
// change from flannel.
func TestNetworkPolicy(t *testing.T) {
	g := startGuard(t)
	stop := g.watch(t)
	g.holds(t, "with Twill there first")
	kubectl(t, "--namespace=kube-twill", "rollout", "restart", "daemonset/twill")
	kubectl(t, "--namespace=kube-twill", "rollout", "status", "daemonset/twill", "--timeout=60s")
	g.holds(t, "when the agents have started again")
	for n := 1; n <= 2; n++ {
		must(t, spec.KillContainer(t.Context(), spec.NodeName(n), "twilld"))
	}
	must(t, spec.WaitReady(t.Context()))
	g.holds(t, "when the agents were killed")
	for n := 1; n <= 2; n++ {
		before := ownRules(t, n)
		onNode(t, n, deleteOwnRules)
		await(t, "the agent to repair its rules", testwait.Limit, func() (bool, error) {
			now := ownRules(t, n)
			return now == before, fmt.Errorf("before:\n%s\nnow:\n%s", before, now)
		})
	}
	g.holds(t, "when the agents have repaired their rules")
	stop()
}

// ownRules is what the agent has in the chain FORWARD and in tables of its own.
func ownRules(t *testing.T, n int) string {
	t.Helper()
	return onNode(t, n, `iptables -S FORWARD | grep -i -e twill -e flannel || true
nft list tables | grep -i -e twill -e flannel || true`)
}

// deleteOwnRules deletes what ownRules lists.
const deleteOwnRules = `iptables -S FORWARD | grep -i -e twill -e flannel | sed 's/^-A/iptables -D/' | sh -e
nft list tables | grep -i -e twill -e flannel | sed 's/^/nft delete /' | sh -e`
