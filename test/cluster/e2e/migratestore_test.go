//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

// TestMigrateStore has a cluster's agents read Lease objects, and Nodes again, while its pods ping each other.
func TestMigrateStore(t *testing.T) {
	manifest, err := spec.Manifest()
	must(t, err)
	t.Cleanup(func() {
		if err := spec.Apply(context.Background(), manifest); err != nil {
			t.Error(err)
		}
	})
	pods := probes(t)
	matrix(t)
	stop := watchLoss(t, pods)
	p := newPlugin(t)
	all := fmt.Sprintf("all %d nodes have their Lease objects", spec.Nodes)
	p.want(t, 0, []string{"step 2 of 2: Store leases", all}, "migrate-store", "--to", "leases")
	matrix(t)
	t.Run("an altered Lease object is put back", alteredObject)
	t.Run("a node of flannel is seen", strangerSeen)
	p.want(t, 0, []string{"step 1 of 1: Store leases", all}, "migrate-store", "--to", "leases")
	p.want(t, 0, []string{"step 2 of 2: Store nodes"}, "migrate-store", "--to", "nodes")
	matrix(t)
	stop()
}

const leaseLabel = "--selector=flannel.alpha.coreos.com/kube-subnet-manager=true"

func alteredObject(t *testing.T) {
	names := strings.Fields(kubectl(t, "--namespace=kube-twill", "get", "leases", leaseLabel, "--output=jsonpath={.items[*].metadata.name}"))
	if len(names) < spec.Nodes {
		t.Fatalf("the Lease objects are %v, want one of each of %d nodes", names, spec.Nodes)
	}
	const address = `{.metadata.annotations.flannel\.alpha\.coreos\.com/backend-type}`
	kubectl(t, "--namespace=kube-twill", "annotate", "--overwrite", "lease", names[0], "flannel.alpha.coreos.com/backend-type=altered")
	await(t, "the backend's type in "+names[0], testwait.Limit, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "--namespace=kube-twill", "get", "lease", names[0], "--output=jsonpath="+address)
		return out != "" && out != "altered", fmt.Errorf("it is %q: %v", out, err)
	})
}

// strangerSeen adds a Node that no agent of Twill keeps: agents ask each other to read Nodes until it is gone.
func strangerSeen(t *testing.T) {
	const stranger = `apiVersion: v1
kind: Node
metadata:
  name: stranger
  annotations:
    flannel.alpha.coreos.com/kube-subnet-manager: "true"
    flannel.alpha.coreos.com/backend-type: vxlan
    flannel.alpha.coreos.com/backend-data: '{"VNI":1,"VtepMAC":"0a:00:00:00:00:99"}'
    flannel.alpha.coreos.com/public-ip: 192.0.2.99
spec:
  podCIDR: 10.244.199.0/24
  podCIDRs: [10.244.199.0/24]
`
	apply(t, stranger)
	gone := func() {
		if _, err := spec.Kubectl(context.Background(), "delete", "node", "stranger", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(gone)
	asking := func() (string, error) {
		return spec.Kubectl(t.Context(), "--namespace=kube-twill", "get", "leases", leaseLabel,
			`--output=jsonpath={.items[*].metadata.annotations.flannel\.alpha\.coreos\.com/read-nodes}`)
	}
	await(t, "agents to ask for the stranger's sake", time.Minute, func() (bool, error) {
		out, err := asking()
		return strings.Contains(out, "stranger"), fmt.Errorf("asked is for %q: %v", out, err)
	})
	await(t, "an event about it", time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "get", "events", "--field-selector=reason=ReadsNodes", "--output=name")
		return out != "", err
	})
	gone()
	await(t, "agents not to ask any more", 3*time.Minute, func() (bool, error) {
		out, err := asking()
		return err == nil && out == "", fmt.Errorf("asked is for %q: %v", out, err)
	})
}
