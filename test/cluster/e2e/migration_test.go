//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// ownCluster makes a cluster for one test.
func ownCluster(t *testing.T, s cluster.Spec) {
	t.Helper()
	s.Dir = filepath.Join(filepath.Dir(spec.Dir), s.Name)
	old := spec
	must(t, os.MkdirAll(filepath.Join(s.Dir, "images"), 0o755))
	image := filepath.Join(s.Dir, "images", "twill.tar")
	_ = os.Remove(image)
	must(t, os.Link(filepath.Join(old.Dir, "images", "twill.tar"), image))
	must(t, cluster.Up(t.Context(), s, func(what string) { t.Log(what) }))
	spec = s
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tell(context.Background()))
		}
		spec = old
		if err := cluster.Down(s); err != nil {
			t.Error(err)
		}
	})
}

// TestMigration replaces genuine flannel node by node while its pods talk and a NetworkPolicy is enforced, and goes
// back, by the commands of Documentation/migration.md.
func TestMigration(t *testing.T) {
	manifest := flannelManifest(t)
	own := cluster.Spec{Name: "twm", Nodes: 2}
	flannelImages(t, manifest, filepath.Join(filepath.Dir(spec.Dir), own.Name, "images"))
	ownCluster(t, own)
	f := flannel{spec}
	f.stockPlugins(t)
	must(t, spec.Apply(t.Context(), manifest))
	kubectl(t, "--namespace=kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=120s")
	kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	old := probes(t)
	matrix(t) // flannel does carry packets
	published := f.published(t)

	page := blocks(t, "migration.md")
	if len(page) != 4 {
		t.Fatalf("migration.md has %d blocks, want: prepare, a node, the end, back", len(page))
	}
	t.Run("node by node", func(t *testing.T) { f.forth(t, page, old) })
	if now := f.published(t); now != published {
		t.Errorf("flannel published %s, and Twill %s", published, now)
	}
	kubectl(t, "delete", "pods", "--selector=app=probe")
	probes(t)
	for n := 1; n <= spec.Nodes; n++ {
		f.noTrace(t, n)
	}
	mixed(t, "after all old pods were replaced")
	t.Run("and back", func(t *testing.T) { f.back(t, page[3]) })
	t.Run("the end", func(t *testing.T) {
		execute(t, page[2])
		mixed(t, "with Twill alone")
		f.isGone(t, 1)
	})
}

// forth changes all nodes to Twill.
func (f flannel) forth(t *testing.T, page []string, old []cluster.Pod) {
	g := startGuard(t)
	g.holds(t, "with flannel")
	stopLoss, stopGuard := watchLoss(t, old), g.watch(t)
	execute(t, page[0])
	for n := 1; n <= spec.Nodes; n++ {
		f.isThere(t, n)
		node := spec.NodeName(n)
		execute(t, strings.Replace(page[1], "node=node1", "node="+node, 1))
		f.isGone(t, n)
		must(t, spec.Apply(t.Context(), podsOn("new"+node, node, 2)))
		kubectl(t, "rollout", "status", "deployment/new"+node, "--timeout=60s")
		mixed(t, "old and new pods with Twill on "+node)
		g.holds(t, "with Twill on "+node)
	}
	stopLoss()
	stopGuard()
}

// watchLoss pings between the old pods, both ways, until the returned function is called; what is lost is an error.
func watchLoss(t *testing.T, pods []cluster.Pod) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for i := range 2 {
		from, to := pods[i], pods[1-i]
		go func() {
			for ctx.Err() == nil {
				if err := pingAll(context.Background(), from.Name, to.Addrs[0], 5); err != nil {
					ended <- fmt.Errorf("%s → %s: %w", from.Node, to.Node, err)
					return
				}
			}
			ended <- nil
		}()
	}
	return func() {
		t.Helper()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

// mixed lets old and new pods on all nodes ask each other.
func mixed(t *testing.T, when string) {
	t.Helper()
	pods, err := spec.Pods(t.Context(), "app in (probe,newnode1,newnode2)")
	must(t, err)
	m, err := spec.PodMatrix(t.Context(), pods)
	must(t, err)
	if err := m.Err(); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// back goes back to flannel on the first node, and Twill stays on the second.
func (f flannel) back(t *testing.T, script string) {
	stop := watchLoss(t, probes(t))
	kubectl(t, "scale", "deployment/newnode1", "--replicas=0") // pods that are bound to their node come back when drained
	execute(t, script)
	await(t, "the agent on node1 to end", time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "-n", "kube-twill", "get", "pods", "--field-selector=spec.nodeName=node1", "--output=name")
		return err == nil && out == "", err
	})
	f.isThere(t, 1)
	kubectl(t, "scale", "deployment/newnode1", "--replicas=2")
	kubectl(t, "rollout", "status", "deployment/newnode1", "--timeout=60s")
	await(t, "pods on node1 that flannel's chain made", time.Minute, func() (bool, error) {
		made, err := os.ReadDir(f.inside(t, 1, "/var/lib/cni/flannel"))
		return len(made) == 2, err
	})
	mixed(t, "with flannel on node1 again")
	stop()
	noLeak(t, "node1")
}
