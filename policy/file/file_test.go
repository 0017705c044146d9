package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/file"
)

const pod = `
kind: Pod
metadata: {name: %s, namespace: shop, labels: {app: %s}}
spec: {nodeName: node1}
status: {podIPs: [{ip: %s}]}
---`

// TestWatch edits a directory, and looks at what is told.
func TestWatch(t *testing.T) {
	dir, changes, reports := t.TempDir(), make(chan policy.Change, 9), make(chan error, 9)
	write := func(name, text string) {
		t.Helper()
		tmp := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("pods.yaml", fmt.Sprintf(pod+pod, "web", "web", "10.244.1.2", "db", "db", "10.244.1.3"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		s := file.New(dir, func(err error) { reports <- err })
		s.Cluster = true
		done <- s.Watch(ctx, func(c policy.Change) { changes <- c })
	}()
	next := func(want string) {
		t.Helper()
		select {
		case c := <-changes:
			got := fmt.Sprintf("rules %v, pods", c.Rules)
			for _, p := range c.Pods {
				got += fmt.Sprintf(" %v→%v", p.Was, p.Now)
			}
			if s := c.Snapshot(); got != want {
				t.Errorf("got %q, want %q; the snapshot is %+v", got, want, s)
			}
		case err := <-reports:
			t.Errorf("got the report %v, want %q", err, want)
		case <-time.After(testwait.Limit):
			t.Fatalf("nothing is told, want %q", want)
		}
	}
	next("rules true, pods")
	write("pods.yaml", fmt.Sprintf(pod+pod, "web", "web", "10.244.1.2", "db", "cache", "10.244.1.3"))
	next("rules false, pods shop/db→shop/db")
	write("policy.yaml", "kind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n")
	next("rules true, pods")
	write("nodes.yaml", "kind: Node\nmetadata: {name: node2}\n")
	next("rules true, pods")
	write("pods.yaml", "kind: NetworkPolicy\nspec: {podSelektor: {}}\n")
	if err := <-reports; err == nil || !strings.Contains(err.Error(), `unknown field "spec.podSelektor"`) {
		t.Errorf("got the report %v", err)
	}
	write("pods.yaml", fmt.Sprintf(pod, "web", "web", "10.244.1.2"))
	next("rules false, pods shop/db→<nil>")
	if err := <-reports; err != nil {
		t.Errorf("got the report %v when the files can be read again", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCluster: ClusterNetworkPolicies, and nodes, are read if that is wanted.
func TestCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "kind: ClusterNetworkPolicy\nmetadata: {name: c}\n---\nkind: Node\nmetadata: {name: n1}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []bool{false, true} {
		s := file.New(path, func(err error) { t.Error(err) })
		s.Cluster = wanted
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Watch(ctx, func(c policy.Change) {
			if got := c.Snapshot(); (len(got.ClusterPolicies) == 1) != wanted || (len(got.Nodes) == 1) != wanted {
				t.Errorf("with Cluster %v got %+v", wanted, got)
			}
			cancel()
		})
		if err != nil {
			t.Error(err)
		}
	}
}
