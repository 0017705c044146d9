package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// TestRenewal: a lease has an end that moves on, and while it cannot be renewed attempts are counted.
func TestRenewal(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	store.ttl, store.recheck = 6*time.Second, 100*time.Millisecond // renewed after three
	if ends, failed := store.Renewal(); !ends.IsZero() || failed != 0 {
		t.Errorf("without a lease: %s, %d", ends, failed)
	}
	acquire(t, store, lease(1))
	first, failed := store.Renewal()
	if first.IsZero() || failed != 0 {
		t.Errorf("a new lease: %s, %d", first, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- store.Watch(ctx, func(subnet.Snapshot) {}) }()
	testwait.Until(t, "the lease is renewed", func() bool { now, failed := store.Renewal(); return now.After(first) && failed == 0 })
	s.end()
	testwait.Until(t, "attempts that fail are counted", func() bool { _, failed := store.Renewal(); return failed >= 2 })
	s.restart(t, s.dir)
	last, _ := store.Renewal()
	testwait.Until(t, "the lease is renewed again", func() bool { now, failed := store.Renewal(); return now.After(last) && failed == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
