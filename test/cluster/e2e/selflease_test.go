//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// TestSelfLease runs a cluster in which nobody assigns podCIDRs, by the manifests of deploy/self-lease.
func TestSelfLease(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "twl", Nodes: 2, SelfLease: true})
	execute(t, "kubectl apply -k deploy/self-lease")
	must(t, spec.WaitReady(t.Context()))
	matrix(t)
	claims := claimants(t)
	for n := 1; n <= spec.Nodes; n++ {
		node := spec.NodeName(n)
		cidr := kubectl(t, "get", "node", node, "--output=jsonpath={.spec.podCIDR}")
		if name := "twill-" + strings.NewReplacer(".", "-", "/", "-").Replace(cidr); claims[name] != node {
			t.Errorf("%s has podCIDR %s, and the claims are %v", node, cidr, claims)
		}
	}
	t.Run("an agent frees its own claims only", func(t *testing.T) { foreignClaim(t, claims) })
	t.Run("the garbage collector frees a deleted node's claim", collected)
}

// claimants is the holders of claims by the claims' names.
func claimants(t *testing.T) map[string]string {
	t.Helper()
	holders := map[string]string{}
	for _, line := range strings.Fields(kubectl(t, "-n", "kube-twill", "get", "leases", `--output=jsonpath={range .items[*]}{.metadata.name}={.spec.holderIdentity} {end}`)) {
		name, holder, _ := strings.Cut(line, "=")
		holders[name] = holder
	}
	return holders
}

func foreignClaim(t *testing.T, claims map[string]string) {
	pod := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "get", "pods", "--field-selector=spec.nodeName=node2", "--output=jsonpath={.items[0].metadata.name}"))
	token := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "create", "token", "twill", "--bound-object-kind=Pod", "--bound-object-name="+pod))
	agent := newAsAgent(t)
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-twill/leases"
	for name, holder := range claims {
		if holder != "node1" {
			continue
		}
		if status, text := agent.do(t, http.MethodDelete, token, leases+"/"+name, ""); status/100 != 4 || !strings.Contains(text, "for its own node only") {
			t.Errorf("node2 deletes node1's claim: %d %s", status, text)
		}
	}
	claim := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"twill-10-244-200-0-24"},"spec":{"holderIdentity":%q}}`
	if status, text := agent.do(t, http.MethodPost, token, leases, fmt.Sprintf(claim, "node1")); status/100 != 4 || !strings.Contains(text, "for its own node only") {
		t.Errorf("node2 claims for node1: %d %s", status, text)
	}
	if status, text := agent.do(t, http.MethodPatch, token, "/api/v1/nodes/node2", `{"spec":{"unschedulable":true}}`); status/100 != 4 || !strings.Contains(text, "nothing of the spec but") {
		t.Errorf("node2 makes itself unschedulable: %d %s", status, text)
	}
}

// collected stops node2 and deletes it: its claims go with it.
func collected(t *testing.T) {
	must(t, spec.StopNode("node2"))
	kubectl(t, "delete", "node", "node2")
	await(t, "node2's claim to go", time.Minute, func() (bool, error) {
		holders := claimants(t)
		for _, holder := range holders {
			if holder == "node2" {
				return false, fmt.Errorf("claims are %v", holders)
			}
		}
		return len(holders) == 1, nil
	})
	must(t, spec.StartNode(2))
	await(t, "node2 to have a podCIDR again", 2*time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "get", "node", "node2", "--output=jsonpath={.spec.podCIDR}")
		return err == nil && strings.HasPrefix(out, "10.244."), err
	})
}
