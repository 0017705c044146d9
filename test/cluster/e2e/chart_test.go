//go:build e2e

package e2e

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/twill-net/twill/test/cluster"
)

// TestChartRendersAsKustomize compares what genuine helm makes of the chart with what kubectl makes of the
// kustomizations.
func TestChartRendersAsKustomize(t *testing.T) {
	for kustomization, values := range map[string]string{
		"deploy/base":       "",
		"deploy/self-lease": "--set selfLease=true",
		"deploy/tun":        "--set backend.Type=udp",
	} {
		t.Run(kustomization, func(t *testing.T) {
			rendered := execute(t, "helm lint --strict --quiet deploy/chart "+values+"\nhelm template twill deploy/chart "+values)
			made := execute(t, "kubectl kustomize "+kustomization)
			if strings.Contains(values, "udp") {
				made = strings.ReplaceAll(made, `"Type":"vxlan"`, `"Type":"udp"`)
			}
			want, got := objects(t, made), objects(t, rendered)
			pod := got["DaemonSet/twill"].(map[string]any)["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)
			if sum := fmt.Sprint(pod["annotations"]); !regexp.MustCompile(`^map\[checksum/config:[0-9a-f]{64}\]$`).MatchString(sum) {
				t.Errorf("helm gives the agents' pods the annotations %s, want the config's checksum alone", sum)
			}
			delete(pod, "annotations")
			for name := range want {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: helm makes\n%v\nkustomize makes\n%v", name, got[name], want[name])
				}
			}
			if len(got) != len(want) {
				t.Errorf("helm makes %d objects, kustomize %d", len(got), len(want))
			}
		})
	}
}

// objects is a manifest's objects by kind and name.
func objects(t *testing.T, manifest string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var o map[string]any
		must(t, yaml.Unmarshal([]byte(document+"\n"), &o)) // a text of many lines ends with its line
		if o != nil {
			all[o["kind"].(string)+"/"+o["metadata"].(map[string]any)["name"].(string)] = o
		}
	}
	return all
}

// TestHelmAndUDP installs the chart with a backend whose agents move packets: without privileges they open the node's
// /dev/net/tun.
func TestHelmAndUDP(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "twu", Nodes: 2})
	execute(t, "helm install twill deploy/chart --set backend.Type=udp --set enableIPv6=true --wait --timeout 120s")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	for n := 1; n <= spec.Nodes; n++ {
		out, err := spec.Host(spec.NodeName(n)).Exec(t.Context(), "ip", "-o", "-details", "link", "show", "type", "tun")
		if err != nil || !strings.Contains(out, "flannel0") {
			t.Errorf("node%d has the TUN devices %q (%v), want flannel0", n, out, err)
		}
	}
	execute(t, "helm upgrade twill deploy/chart --set backend.Type=vxlan --set enableIPv6=true --wait --timeout 120s\n"+
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
