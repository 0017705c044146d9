package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
)

// TestContradiction puts etcd back to a backup while the API server runs, which Kubernetes forbids: it lists what it has in
// memory from then on. That is said, and when the API server was started again, that it is over.
func TestContradiction(t *testing.T) {
	s := startBackedUp(t)
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	old := s.backup(t)
	store, waits := s.open(t, Options{Kubeconfig: s.kubeconfig(t, agentUser)})
	store.lookAtAPI = 200 * time.Millisecond
	acquire(t, store, want4)
	watching(t, store)
	for i := range 50 {
		s.annotate(t, self, map[string]any{"public-ip-overwrite": fmt.Sprintf("192.0.2.%d", 1+i)})
	}
	if found, err := store.contradiction(t.Context()); found != nil || err != nil {
		t.Fatalf("at first: %v, %v", found, err)
	}
	address := strings.TrimPrefix(s.etcd.Endpoints()[0], "http://")
	s.etcd.Close()
	var err error
	s.etcd, err = controlplane.StartEtcd(t.Context(), old, address)
	must(t, err)
	t.Cleanup(s.etcd.Close)
	testwait.Until(t, "it is said", func() bool { return waits.has(taskCompare, "the API server contradicts itself about node") })
	s.stop(t, func() { s.dir = old })
	testwait.Until(t, "it is over", func() bool { return waits.has(taskCompare, "ok") })
}
