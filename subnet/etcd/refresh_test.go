package etcd

import (
	"encoding/json"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/subnet"
)

// TestRefreshLosesARace: a record that somebody wrote after it was listed is not written over, and the store does not
// believe that it holds what it did not write.
func TestRefreshLosesARace(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	l := acquire(t, store, lease(1))
	v, err := store.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have := v.records[formatName(l)]
	_, id := s.get(t, dir+formatName(l))
	const theirs = `{"PublicIP":"192.0.2.9"}`
	if _, err := s.client(t).Put(t.Context(), dir+formatName(l), theirs, clientv3.WithLease(clientv3.LeaseID(id))); err != nil {
		t.Fatal(err)
	}
	before := store.own.Load()
	want := lease(1)
	want.Stacks[0].Data = json.RawMessage(`{"VNI":2}`)
	if err := store.refresh(t.Context(), have, want); !errors.Is(err, errRaced) {
		t.Errorf("got %v, want a lost race", err)
	}
	if value, _ := s.get(t, dir+formatName(l)); value != theirs {
		t.Errorf("the other's record was written over: %s", value)
	}
	if store.own.Load() != before {
		t.Errorf("the store believes that it holds %+v", store.own.Load())
	}
	if got := acquire(t, store, want); string(got.Stacks[0].Data) != `{"VNI":2}` {
		t.Errorf("the next attempt gave %+v", got)
	}
}

// TestRefreshReplacesAnExpiredLease: somebody wrote the record without its etcd lease, which ended meanwhile.
func TestRefreshReplacesAnExpiredLease(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	l := acquire(t, store, lease(1))
	_, id := s.get(t, dir+formatName(l))
	s.put(t, dir+formatName(l), `{"PublicIP":"192.0.2.9"}`)
	if _, err := s.client(t).Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
		t.Fatal(err)
	}
	if got := acquire(t, store, lease(1)); !got.Equal(l) {
		t.Errorf("got %+v, want %+v", got, l)
	}
	if _, now := s.get(t, dir+formatName(l)); now == id || now == 0 {
		t.Errorf("the record has etcd lease %x, want one that is not over", now)
	}
}
