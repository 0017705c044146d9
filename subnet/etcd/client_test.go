package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// TestConnectOnce: all calls of a Store have one client, and none after Close.
func TestConnectOnce(t *testing.T) {
	store, err := New(Options{Endpoints: []string{"http://127.0.0.1:1"}, Pools: []subnet.Pool{v4}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := store.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := store.connect(t.Context()); err != nil || second != first {
		t.Errorf("the second call returned another client (%t), %v", second != first, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if _, err := store.connect(t.Context()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v, want an error that says so", err)
	}
}

// TestWatchEnds: a watch whose context ends says nothing of it.
func TestWatchEnds(t *testing.T) {
	reports := make(chan error, 1000)
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}, Report: func(err error) { reports <- err }})
	acquire(t, store, lease(1))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	seen := make(chan struct{}, 1000)
	go func() { done <- store.Watch(ctx, func(subnet.Snapshot) { seen <- struct{}{} }) }()
	select {
	case <-seen:
	case <-time.After(testwait.Limit):
		t.Fatal("no snapshot")
	}
	before := len(reports)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for range len(reports) - before {
		t.Error("a report after the end")
	}
}

// TestOutageSaysWhy: the client gives up with no more than that its time is over, and the cause is said with it.
func TestOutageSaysWhy(t *testing.T) {
	s, err := New(Options{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = s.Config(ctx)
	if !IsOutage(err) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want that the connection was refused", err)
	}
}

// TestAnswerSaysWhy: what etcd itself answers has no cause in another endpoint that is away.
func TestAnswerSaysWhy(t *testing.T) {
	store, err := New(Options{Endpoints: []string{"http://127.0.0.1:1", startServer(t).url}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client, err := store.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Get(t.Context(), "key", clientv3.WithRev(1<<40))
	if !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Fatalf("etcd says %v", err)
	}
	testwait.Until(t, "the other endpoint is found to be away", func() bool { return store.unreached.Load() != nil })
	if text := store.failed("read", err).Error(); strings.Contains(text, "connection refused") {
		t.Errorf("%q: want what etcd answered alone", text)
	}
}
