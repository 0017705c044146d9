package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
	if err := store.refresh(t.Context(), have, want); !errors.Is(err, errConflict) {
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

// TestRefreshUnreadableData: what cannot be encoded is an error, and the record stays as it was.
func TestRefreshUnreadableData(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	l := acquire(t, store, lease(1))
	before, _ := s.get(t, dir+formatName(l))
	want := lease(1)
	want.Stacks[0].Data = json.RawMessage(`{`)
	if _, err := store.Acquire(t.Context(), want); err == nil {
		t.Error("acquired a lease whose data is not JSON")
	}
	if after, _ := s.get(t, dir+formatName(l)); after != before {
		t.Errorf("the record says %s, it said %s", after, before)
	}
}

// TestMoveOfADamagedRecord: a lease that moves names its subnet of before, also when somebody damaged its record.
func TestMoveOfADamagedRecord(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	before := acquire(t, store, lease(1))
	was := before.Stacks[0].Subnet
	s.put(t, dir+formatName(before), `{`)
	store.Exclude([]subnet.Foreign{{Prefix: was, What: "a network of this node"}})
	got := acquire(t, store, lease(1)).Stacks[0]
	if got.Subnet == was || !slices.Equal(got.Earlier(), []netip.Prefix{was}) {
		t.Errorf("moved from %s to %s: the earlier subnets are %s", was, got.Subnet, got.Earlier())
	}
}

// TestRenewMargin: a lease is renewed the margin before its end, but never before half of its time.
func TestRenewMargin(t *testing.T) {
	for margin, want := range map[time.Duration]time.Duration{
		time.Minute: 24*time.Hour - time.Minute, time.Hour: 23 * time.Hour, 23 * time.Hour: 12 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			store, err := New(Options{Endpoints: []string{"http://192.0.2.1:2379"}, RenewMargin: margin})
			if err != nil {
				t.Fatal(err)
			}
			store.hold(&owned{})
			if in := time.Until(store.own.Load().renew); in != want {
				t.Errorf("with a margin of %s the lease is renewed in %s, want %s", margin, in, want)
			}
		})
	}
}

// TestWatchBacksOff: a Watch that cannot connect tries again, and less and less often.
func TestWatchBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Time
		store, err := New(Options{Endpoints: []string{"https://192.0.2.1:2379"}, CAFile: t.TempDir() + "/none",
			Report: func(err error) {
				attempts = append(attempts, time.Now())
				if err == nil {
					t.Error("an outage without an error")
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := store.Watch(ctx, func(s subnet.Snapshot) { t.Errorf("got %+v", s) }); err != nil {
			t.Error(err)
		}
		if most := int(time.Minute/lastWait) + 5; len(attempts) < 10 || len(attempts) > most {
			t.Fatalf("%d attempts in a minute, want 10 to %d", len(attempts), most)
		}
		for i, want := 1, firstWait; i < len(attempts); i, want = i+1, min(2*want, lastWait) {
			if wait := attempts[i].Sub(attempts[i-1]); wait != want {
				t.Errorf("attempt %d came after %v, want %v", i, wait, want)
			}
		}
	})
}
