//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// TestHelmAndUDP installs the chart with a backend whose agents move packets: without privileges they open the node's
// /dev/net/tun.
func TestHelmAndUDP(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "twu", Nodes: 2})
	execute(t, "helm install twill deploy/chart --set backend.Type=udp --set ipv6Network=fd00:10:244::/48 --wait --timeout 120s")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	for n := 1; n <= spec.Nodes; n++ {
		out, err := spec.Host(spec.NodeName(n)).Exec(t.Context(), "ip", "-o", "-details", "link", "show", "type", "tun")
		if err != nil || !strings.Contains(out, "flannel0") {
			t.Errorf("node%d has the TUN devices %q (%v), want flannel0", n, out, err)
		}
	}
	execute(t, "helm upgrade twill deploy/chart --set backend.Type=vxlan --set ipv6Network=fd00:10:244::/48 --wait --timeout 120s\n"+
		"kubectl --namespace kube-twill rollout restart daemonset/twill")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	execute(t, "helm uninstall twill --wait")
}

// TestHelmSecretAndIPv6 installs the chart in a namespace that is there already, with only IPv6 and a network config that
// is in a Secret, for its pre-shared key.
func TestHelmSecretAndIPv6(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "tws", Nodes: 2, Families: cluster.IPv6Only})
	execute(t, `kubectl create namespace kube-twill
		kubectl label namespace kube-twill pod-security.kubernetes.io/enforce=privileged
		kubectl --namespace kube-twill create secret generic net --from-literal net-conf.json='{"EnableIPv4": false, "EnableIPv6": true,
			"IPv6Network": "fd00:10:244::/48", "Backend": {"Type": "wireguard", "PSK": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}'
		helm install twill deploy/chart --namespace kube-twill --set network= --set ipv6Network=fd00:10:244::/48 \
			--set backend.Type=wireguard --set netConfSecret=net --wait --timeout 120s`)
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	if said := execute(t, "kubectl --namespace kube-twill logs daemonset/twill --all-pods"); strings.Contains(said, "level=WARN") {
		t.Errorf("the agents warn:\n%s", said)
	}
	// The values alone make the same network, without the key.
	execute(t, "helm upgrade twill deploy/chart --namespace kube-twill --set network= --set ipv6Network=fd00:10:244::/48 --wait --timeout 120s")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	execute(t, "helm rollback twill --namespace kube-twill --wait --timeout 120s")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
}

// converge waits until every pod reaches every pod: agents learn of a backend that changes one after the other.
func converge(t *testing.T) {
	t.Helper()
	await(t, "every pod to reach every pod", time.Minute, func() (bool, error) {
		m, err := spec.PodMatrix(t.Context(), probes(t))
		if err != nil {
			return false, err
		}
		if err := m.Err(); err != nil {
			t.Log(err)
		}
		return m.Err() == nil, m.Err()
	})
}
