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
	"github.com/twill-net/twill/policy/policytest"
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
		done <- policytest.Follow(ctx, s, func(c policy.Change) { changes <- c })
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
	reported := func(want string) {
		t.Helper()
		select {
		case err := <-reports:
			if got := fmt.Sprint(err); !strings.HasSuffix(got, want) {
				t.Errorf("got the report %s, want %s", got, want)
			}
		case <-time.After(testwait.Limit):
			t.Fatalf("no report, want %s", want)
		}
	}
	write("pods.yaml", "a: [")
	reported("did not find expected node content")
	write("pods.yaml", fmt.Sprintf(pod+pod, "web", "5", "10.244.1.2", "db", "db", "10.244.1.3"))
	next("rules false, pods shop/db→shop/db")
	reported("Pod shop/web: json: cannot unmarshal number into Go struct field .Metadata.Labels of type string")
	write("pods.yaml", fmt.Sprintf(pod+pod, "new", "5", "10.244.1.2", "web", "web", "10.244.1.3"))
	reported("Pod shop/new: json: cannot unmarshal number into Go struct field .Metadata.Labels of type string")
	write("pods.yaml", fmt.Sprintf(pod, "web", "web", "10.244.1.2"))
	next("rules false, pods shop/db→<nil>")
	reported("<nil>")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCluster: ClusterNetworkPolicies, and nodes, are read if that is wanted.
func TestCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "kind: ClusterNetworkPolicy\nmetadata: {name: c}\nspec: {tier: Admin, subject: {namespaces: {}}}\n---\nkind: Node\nmetadata: {name: n1}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []bool{false, true} {
		s := file.New(path, func(err error) { t.Error(err) })
		s.Cluster = wanted
		ctx, cancel := context.WithCancel(t.Context())
		err := policytest.Follow(ctx, s, func(c policy.Change) {
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

// TestRefused: an object that an API server would have refused changes nothing for others. A NetworkPolicy closes, and
// anything else stays as it was.
func TestRefused(t *testing.T) {
	const open = "kind: NetworkPolicy\nmetadata: {name: open}\nspec: {podSelector: {}, ingress: [{}]}\n---\n"
	const cluster = "kind: ClusterNetworkPolicy\nmetadata: {name: c}\nspec: {tier: %s, subject: {namespaces: {}}}\n---\n"
	const node, namespace = "kind: Node\nmetadata: {name: n1, labels: %s}\n---\n", "kind: Namespace\nmetadata: {name: shop, labels: %s}\n---\n"
	path := filepath.Join(t.TempDir(), "all.yaml")
	write := func(texts ...string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(strings.Join(texts, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(open, fmt.Sprintf(cluster, "Admin"), fmt.Sprintf(node, "{a: b}"), fmt.Sprintf(namespace, "{a: b}"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	snapshots, reports := make(chan policy.Snapshot, 9), make(chan error, 9)
	s := file.New(path, func(err error) { reports <- err })
	s.Cluster = true
	go func() { _ = policytest.Follow(ctx, s, func(c policy.Change) { snapshots <- c.Snapshot() }) }()
	next := func() (s policy.Snapshot) {
		t.Helper()
		select {
		case s = <-snapshots:
		case <-time.After(testwait.Limit):
			t.Fatal("nothing is told")
		}
		return s
	}
	next()
	write(strings.Replace(open, "ingress", "ingres", 1), fmt.Sprintf(cluster, "Amin"), fmt.Sprintf(node, "[]"), fmt.Sprintf(namespace, "5"),
		"kind: NetworkPolicy\nmetadata: {name: second}\nspec: {podSelector: {}}\n")
	got := next()
	if p := got.Policies; len(p) != 2 || p[0].Refused != `unknown field "spec.ingres"` || len(p[0].Spec.PolicyTypes) != 2 || p[1].Refused != "" {
		t.Errorf("got the policies %+v", p)
	}
	if p := got.ClusterPolicies; len(p) != 1 || p[0].Spec.Tier != policy.Admin {
		t.Errorf("got the ClusterNetworkPolicies %+v", p)
	}
	if len(got.Nodes) != 1 || got.Nodes[0].Labels["a"] != "b" || got.Namespaces["shop"]["a"] != "b" {
		t.Errorf("got the nodes %v and the namespaces %v", got.Nodes, got.Namespaces)
	}
	select {
	case err := <-reports:
		for _, want := range []string{`ClusterNetworkPolicy c: there is no tier "Amin"`, "Node n1: ", "Namespace shop: "} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got the report %v, want %s", err, want)
			}
		}
	case <-time.After(testwait.Limit):
		t.Error("no report")
	}
}
