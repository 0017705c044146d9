package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

func forbidden(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{Kubeconfig: s.kubeconfig(t, strangerUser)})
	_, err := store.Acquire(t.Context(), want4)
	wantError(t, err, "the API server forbids get on nodes: ")
	_, err = store.Hints(t.Context())
	wantError(t, err, "the API server forbids get on nodes: ")
}

// forbiddenPatch gives the stranger all rights but the one to write.
func forbiddenPatch(t *testing.T, s *server) {
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	s.post(t, group+"clusterroles", map[string]any{
		"metadata": map[string]any{"name": "kubetest-reader"},
		"rules":    []any{map[string]any{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"get", "list", "watch"}}},
	})
	s.post(t, group+"clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "kubetest-reader"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubetest-reader"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": strangerUser}},
	})
	t.Cleanup(func() {
		for _, kind := range []string{"clusterrolebindings", "clusterroles"} {
			if err := s.admin.rest.Delete().AbsPath(group + kind + "/kubetest-reader").Do(background(t)).Error(); err != nil {
				t.Error(err)
			}
		}
	})
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, Options{Kubeconfig: s.kubeconfig(t, strangerUser), SetNetworkUnavailable: true})
	var err error
	testwait.Until(t, "the right to read", func() bool {
		_, err = store.Acquire(t.Context(), want4)
		return !strings.Contains(err.Error(), "forbids get")
	})
	wantError(t, err, "the API server forbids patch on nodes/status: ")
	if !kubeclient.IsTerminal(err) {
		t.Error("the error is not terminal")
	}
	asked := asks(store)
	w := watching(t, store)
	store.Network(true, "", "")
	store.Event("Normal", "Refused", "nobody will read this")
	testwait.Until(t, "a snapshot all the same", func() bool { return len(w.each()) > 0 })
	testwait.Until(t, "word of the condition", func() bool {
		return waits.has(taskNetwork, "the API server forbids patch on nodes/status")
	})
	testwait.Until(t, "word of the event", func() bool {
		return waits.has(taskEvent, "the API server forbids create on events")
	})
	loop.Sleep(t.Context(), 300*time.Millisecond)
	if n := asked.count("POST"); n != 1 {
		t.Errorf("an event that is forbidden was sent %d times, want once", n)
	}
	other, waits := s.open(t, Options{Kubeconfig: s.kubeconfig(t, strangerUser), SetPeersReached: true})
	watching(t, other)
	asked = asks(other)
	other.Reached(false, "PeersUnreached", "no packet comes back")
	testwait.Until(t, "word of the other condition", func() bool {
		return waits.has(taskReached, "the condition is not kept, and tried again in an hour: the API server forbids patch on nodes/status")
	})
	s.annotate(t, self, map[string]any{"test": "the node changes"})
	other.Reached(true, "PeersReached", "")
	loop.Sleep(t.Context(), 500*time.Millisecond)
	if n := asked.count("PATCH"); n != 1 {
		t.Errorf("a condition that is forbidden was sent %d times, want once", n)
	}
}

func unauthorized(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, s.api.Kubeconfig("not-a-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	store, _ := s.open(t, Options{Kubeconfig: path})
	_, err := store.Acquire(t.Context(), want4)
	wantError(t, err, "the API server does not know the credentials for get on nodes")
}

// lateRights: Watch is not given up because of a refusal.
func lateRights(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	store, waits := s.open(t, Options{Kubeconfig: s.kubeconfig(t, strangerUser)})
	w := watching(t, store)
	testwait.Until(t, "word of it", func() bool { return waits.has(taskWatch, "the API server forbids list on nodes") })
	if n := len(w.each()); n > 0 {
		t.Fatalf("got %d snapshots without the right to read nodes", n)
	}
	if err := s.api.ApplyAgentRBAC(t.Context(), agentUser, strangerUser); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.api.ApplyAgentRBAC(background(t), agentUser); err != nil {
			t.Error(err)
		}
	})
	testwait.Until(t, "a snapshot", func() bool { return len(w.last().Peers) == 1 })
	testwait.Until(t, "word that it is over", func() bool { return waits.has(taskWatch + ": ok") })
}

// TestRestart restarts the API server under a Watch: no snapshot loses a peer, except the one that left while no
// API server ran. The new server has no history, so the old watch cannot be resumed (410).
func TestRestart(t *testing.T) {
	etcd := controlplanetest.Etcd(t)
	cfg := controlplane.APIServerConfig{Dir: t.TempDir(), EtcdEndpoints: etcd.Endpoints()}
	s := startServer(t, cfg)
	for i := range 5 {
		s.createNode(t, flannelNode(i+1))
	}
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	store, _ := s.open(t, Options{Kubeconfig: s.kubeconfig(t, agentUser)})
	local := acquire(t, store, want4)
	w := watching(t, store)
	all := []string{"kubetest-peer-001", "kubetest-peer-002", "kubetest-peer-003", "kubetest-peer-004", "kubetest-peer-005"}
	testwait.Until(t, "all peers", func() bool { return slices.Equal(names(w.last()), all) })

	s.restart(t, cfg, func() { deleteKey(t, etcd, "/registry/minions/kubetest-peer-003") })
	left := slices.Delete(slices.Clone(all), 2, 3)
	began := time.Now()
	testwait.Until(t, "the peer that left to be gone", func() bool { return slices.Equal(names(w.last()), left) })
	t.Logf("in sync %s after the API server was ready", time.Since(began).Round(time.Millisecond))
	for _, snap := range w.each() {
		if got := names(snap); !slices.Equal(got, all) && !slices.Equal(got, left) || !snap.Local.Equal(local) {
			t.Errorf("a snapshot has %v and %+v", got, snap.Local)
		}
	}
	s.createNode(t, flannelNode(6))
	testwait.Until(t, "a peer that joins later", func() bool { return len(w.last().Peers) == 5 })
}

// restart ends the API server, calls down while there is none, and starts one at the same address.
func (s *server) restart(t *testing.T, cfg controlplane.APIServerConfig, down func()) {
	t.Helper()
	if err := s.api.Close(); err != nil {
		t.Fatal(err)
	}
	down()
	cfg.Listen = netip.MustParseAddrPort(strings.TrimPrefix(s.api.URL(), "https://"))
	cfg.Users = []controlplane.User{{Name: agentUser}, {Name: strangerUser}}
	s.api = controlplanetest.Start(t, cfg)
}

// TestRestartAmongMany restarts the API server under watches of more objects than a page of a list has. Where it cannot
// resume them, all is listed as it is now, and not as of the version that it has no history of.
func TestRestartAmongMany(t *testing.T) {
	etcd := controlplanetest.Etcd(t)
	cfg := controlplane.APIServerConfig{Dir: t.TempDir(), EtcdEndpoints: etcd.Endpoints()}
	s := startServer(t, cfg)
	s.allowLeases(t)
	const n = 510
	s.createMany(t, 0, n)
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	s.createNode(t, testNode("kubetest-other", "10.244.201.0/24"))
	first, _ := s.open(t, Options{})
	w := watching(t, first)
	testwait.Until(t, "all peers", func() bool { return len(w.last().Peers) == n })
	byNodes, _ := s.open(t, Options{})
	byNodes.Restore(first.Checkpoint())
	byLeases, _ := s.open(t, Options{Node: "kubetest-other", Store: subnet.StoreLeases, LeaseNamespace: claimSpace})
	all := []*snapshots{watching(t, byNodes), watching(t, byLeases)}
	knows := func(n int) func() bool {
		return func() bool {
			return !slices.ContainsFunc(all, func(w *snapshots) bool { return len(w.last().Peers) != n })
		}
	}
	testwait.Until(t, "all peers", knows(n))
	s.restart(t, cfg, func() {
		deleteKey(t, etcd, "/registry/minions/kubetest-many-0007")
		deleteKey(t, etcd, "/registry/leases/"+claimSpace+"/"+claimName(subnetOfMany(7)))
	})
	s.createMany(t, n, n+2)
	testwait.Until(t, "two nodes that join", knows(n+1))
}

func subnetOfMany(i int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.%d/26", i/4, i%4*64))
}

// createMany creates the Nodes [from, to) and their Lease objects.
func (s *server) createMany(t *testing.T, from, to int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for i := from; i < to; i++ {
		g.Go(func() error {
			name, p, ip := fmt.Sprintf("kubetest-many-%04d", i), subnetOfMany(i).String(), fmt.Sprintf("192.0.%d.%d", i/250, 1+i%250)
			object := &coordinationv1.Lease{ObjectMeta: leaseObject(name, types.UID(name), p, ip, 0).ObjectMeta}
			node := testNode(name, p)
			node.Annotations = maps.Clone(object.Annotations)
			node.Annotations[note+"kube-subnet-manager"] = "true"
			return errors.Join(s.admin.rest.Post().Resource("nodes").Body(node).Do(t.Context()).Error(),
				s.admin.leases.Post().Namespace(claimSpace).Resource("leases").Body(object).Do(t.Context()).Error())
		})
	}
	must(t, g.Wait())
}

func deleteKey(t *testing.T, e *controlplane.Etcd, key string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), DialTimeout: testwait.Limit})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Delete(t.Context(), key)
	if err == nil && r.Deleted != 1 {
		err = errors.New("there is no such key")
	}
	if err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
}
