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
