package kube

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// backedUp is an API server whose etcd can be put back to an earlier time.
type backedUp struct {
	*server
	cfg  controlplane.APIServerConfig
	dir  string // of the etcd that runs
	etcd *controlplane.Etcd
}

func startBackedUp(t *testing.T) *backedUp {
	t.Helper()
	b := &backedUp{dir: t.TempDir(), cfg: controlplane.APIServerConfig{Dir: t.TempDir()}}
	b.startEtcd(t)
	b.server = startServer(t, b.cfg)
	b.cfg.Listen = netip.MustParseAddrPort(strings.TrimPrefix(b.api.URL(), "https://"))
	b.cfg.Users = []controlplane.User{{Name: agentUser}, {Name: strangerUser}}
	return b
}

func (b *backedUp) startEtcd(t *testing.T) {
	t.Helper()
	var err error
	if b.etcd, err = controlplane.StartEtcd(t.Context(), b.dir, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.etcd.Close)
	b.cfg.EtcdEndpoints = b.etcd.Endpoints()
}

// stop ends API server and etcd; during runs while nothing does.
func (b *backedUp) stop(t *testing.T, during func()) {
	t.Helper()
	if err := b.api.Close(); err != nil {
		t.Fatal(err)
	}
	b.etcd.Close()
	during()
	b.startEtcd(t)
	b.api = controlplanetest.Start(t, b.cfg)
}

// backup copies what etcd has, and returns where it is.
func (b *backedUp) backup(t *testing.T) string {
	t.Helper()
	at := t.TempDir()
	b.stop(t, func() {
		if err := os.CopyFS(filepath.Join(at, "data"), os.DirFS(filepath.Join(b.dir, "data"))); err != nil {
			t.Fatal(err)
		}
	})
	return at
}

// TestRestoredServer puts the API server back to a time when a node had no podCIDR yet, which then gets another one
// than it had had. A store that watches notices, and so does one that is started later with what the first one knew.
func TestRestoredServer(t *testing.T) {
	s := startBackedUp(t)
	late := flannelNode(2)
	late.Spec.PodCIDR, late.Spec.PodCIDRs = "", nil
	s.createNode(t, flannelNode(1))
	s.createNode(t, late)
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	old := s.backup(t)

	store, _ := s.open(t, Options{Kubeconfig: s.kubeconfig(t, agentUser)})
	acquire(t, store, want4)
	w := watching(t, store)
	s.patchSpec(t, late.Name, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`)
	testwait.Until(t, "both peers", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
	for i := range 500 { // what is written after the restoration must not get as far
		s.annotate(t, "kubetest-peer-001", map[string]any{"public-ip": fmt.Sprintf("192.0.2.%d", 1+i%100)})
	}
	testwait.Until(t, "the last change", func() bool { return w.last().Peers[0].Stacks[0].Underlay.String() == "192.0.2.100" })
	known := store.Checkpoint()

	s.stop(t, func() { s.dir = old })
	s.patchSpec(t, late.Name, `{"spec":{"podCIDR":"10.244.8.0/24","podCIDRs":["10.244.8.0/24"]}}`)
	after := "peer-001 10.244.1.0/24, peer-002 10.244.8.0/24"
	began := time.Now()
	testwait.Until(t, "the podCIDR after the restoration", w.leasing(after))
	t.Logf("noticed %s after the API server was ready", time.Since(began).Round(time.Millisecond))
	if ip := w.last().Peers[0].Stacks[0].Underlay.String(); ip != "192.0.2.1" {
		t.Errorf("peer-001 is at %s, want what the backup has, 192.0.2.1", ip)
	}
	testwait.Until(t, "the own lease again", func() bool { return s.node(t, self).Annotations[note+"public-ip"] == "192.0.2.200" })

	later, _ := s.open(t, Options{Kubeconfig: s.kubeconfig(t, agentUser)})
	later.Restore(known)
	w = watching(t, later)
	testwait.Until(t, "the same from a store that was away", w.leasing(after))
}

// TestLeasesInAnotherEtcd: an API server may keep Lease objects in an etcd of their own, with other revisions. A watch
// of them begins nevertheless, where it was taken for one of the future, and all were listed again and again.
func TestLeasesInAnotherEtcd(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{
		Flags: []string{"--etcd-servers-overrides=/nodes#" + controlplanetest.Etcd(t).Endpoints()[0]}})
	s.allowLeases(t)
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	asked, watched := asks(store), make(chan struct{}, 100)
	asked.before = func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/leases") && r.URL.Query().Get("watch") != "" {
			watched <- struct{}{}
		}
	}
	acquire(t, store, want4)
	watching(t, store)
	select {
	case <-watched:
	case <-time.After(testwait.Limit):
		t.Errorf("Lease objects are not watched: %q", asked.said())
	}
}
