package etcd

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/storetest"
)

// server is a real etcd that can be stopped and started again on the same port.
type server struct {
	dir string
	url string
	end func()
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.restart(t, s.dir)
	t.Cleanup(func() { s.end() })
	return s
}

func (s *server) restart(t *testing.T, dir string) {
	t.Helper()
	e, err := controlplane.StartEtcd(t.Context(), dir, strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	s.url, s.end = e.Endpoints()[0], e.Close
}

// client is a human with etcdctl.
func (s *server) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) put(t *testing.T, key, value string) {
	t.Helper()
	if _, err := s.client(t).Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// get is the key's value and its etcd lease; it ends the test when there is no such key.
func (s *server) get(t *testing.T, key string) (string, int64) {
	t.Helper()
	resp, err := s.client(t).Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		t.Fatalf("no key %s", key)
	}
	return string(resp.Kvs[0].Value), resp.Kvs[0].Lease
}

func (s *server) delete(t *testing.T, key string) {
	t.Helper()
	resp, err := s.client(t).Delete(t.Context(), key)
	if err != nil || resp.Deleted != 1 {
		t.Fatalf("delete %s: %+v %v", key, resp, err)
	}
}

// open makes a Store that ends with the test.
func (s *server) open(t *testing.T, o Options) *Store {
	t.Helper()
	o.Endpoints = []string{s.url}
	store, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestStore(t *testing.T) {
	s := startServer(t)
	storetest.Run(t, func(t *testing.T, pools []subnet.Pool) storetest.Harness {
		return &harness{server: s, prefix: "/" + strings.ReplaceAll(t.Name(), " ", "-"), pools: pools}
	})
}

// harness is one prefix of the server.
type harness struct {
	*server
	prefix string
	pools  []subnet.Pool
}

func (h *harness) key(l subnet.Lease) string { return h.prefix + "/subnets/" + formatName(l) }

func (h *harness) Store(t *testing.T, _ subnet.Lease) subnet.Store {
	return h.open(t, Options{Prefix: h.prefix, Pools: h.pools})
}

func (h *harness) Configure(_ *testing.T, pools []subnet.Pool) { h.pools = pools }

func (h *harness) Leave(t *testing.T, l subnet.Lease)  { h.delete(t, h.key(l)) }
func (h *harness) Delete(t *testing.T, l subnet.Lease) { h.delete(t, h.key(l)) }

func (h *harness) Alter(t *testing.T, l subnet.Lease) {
	altered, _ := h.get(t, h.key(l))
	altered = strings.NewReplacer("192.0.2.", "192.0.3.", "2001:db8::", "2001:db9::").Replace(altered)
	h.put(t, h.key(l), altered)
}

func (h *harness) Damage(t *testing.T, l subnet.Lease) string {
	h.put(t, h.key(l), `{"PublicIP":`)
	return formatName(l)
}

func (h *harness) Outage(t *testing.T, during func()) {
	h.end()
	during()
	h.restart(t, h.dir)
}

// watch runs Watch until the test ends.
func watch(t *testing.T, s *Store) <-chan subnet.Snapshot {
	t.Helper()
	snapshots := make(chan subnet.Snapshot, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(ctx, func(s subnet.Snapshot) { snapshots <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch ended with %v", err)
		}
	})
	return snapshots
}

// until waits for a snapshot for which ok is true.
func until(t *testing.T, snapshots <-chan subnet.Snapshot, what string, ok func(subnet.Snapshot) bool) subnet.Snapshot {
	t.Helper()
	timeout := time.After(testwait.Limit)
	var last subnet.Snapshot
	for {
		select {
		case last = <-snapshots:
			if ok(last) {
				return last
			}
		case <-timeout:
			t.Fatalf("waited for %s; the last snapshot is %+v", what, last)
		}
	}
}
