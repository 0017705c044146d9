package controlplane_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
)

func TestEtcdServesRealClients(t *testing.T) {
	e := startEtcd(t, t.TempDir())
	client := etcdClient(t, e.Endpoints())
	if _, err := client.Put(t.Context(), "/twill/key", "value"); err != nil {
		t.Fatal(err)
	}
	if got := etcdGet(t, client, "/twill/key"); got != "value" {
		t.Errorf("got %q, want %q", got, "value")
	}
}

func TestEtcdKeepsItsDataOverARestart(t *testing.T) {
	dir := t.TempDir()
	first := startEtcd(t, dir)
	if _, err := etcdClient(t, first.Endpoints()).Put(t.Context(), "key", "kept"); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second := startEtcd(t, dir)
	if got := etcdGet(t, etcdClient(t, second.Endpoints()), "key"); got != "kept" {
		t.Errorf("after a restart: got %q, want %q", got, "kept")
	}
}

func TestEtcdClosesUnderAnOpenWatch(t *testing.T) {
	e := startEtcd(t, t.TempDir())
	client := etcdClient(t, e.Endpoints())
	watch := client.Watch(t.Context(), "key", clientv3.WithCreatedNotify())
	if r := <-watch; !r.Created {
		t.Fatalf("no watch: %+v", r)
	}
	e.Close()
	if c, err := net.Dial("tcp", strings.TrimPrefix(e.Endpoints()[0], "http://")); err == nil {
		c.Close()
		t.Error("etcd still listens")
	}
}

func TestTwoEtcdsSideBySide(t *testing.T) {
	a, b := startEtcd(t, t.TempDir()), startEtcd(t, t.TempDir())
	if _, err := etcdClient(t, a.Endpoints()).Put(t.Context(), "key", "a"); err != nil {
		t.Fatal(err)
	}
	if got := etcdGet(t, etcdClient(t, b.Endpoints()), "key"); got != "" {
		t.Errorf("the second etcd has the first one's value %q", got)
	}
}

func TestStartEtcdSaysWhyItFailed(t *testing.T) {
	first := startEtcd(t, t.TempDir())
	_, err := controlplane.StartEtcd(t.Context(), t.TempDir(), strings.TrimPrefix(first.Endpoints()[0], "http://"))
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a second etcd at the same address: %v", err)
	}
}

func startEtcd(t *testing.T, dir string) *controlplane.Etcd {
	t.Helper()
	started := time.Now()
	e, err := controlplane.StartEtcd(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("etcd ready after %v", time.Since(started).Round(time.Millisecond))
	t.Cleanup(e.Close)
	return e
}

func etcdClient(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: testwait.Limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func etcdGet(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	r, err := client.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}
