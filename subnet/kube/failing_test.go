package kube

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// acquireFails: whichever call of Acquire gets no answer, that is told of, and the next attempt gets what the first would
// have got.
func acquireFails(t *testing.T, s *server) {
	for k := 0; ; k++ {
		s.clear(t)
		s.createNode(t, testNode(self, "10.244.7.0/24"))
		store, waits := s.open(t, Options{})
		asked := asks(store)
		asked.fail = func(n int) bool { return n == k }
		l := acquire(t, store, want4)
		if l.Stacks[0].Subnet.String() != "10.244.7.0/24" || s.node(t, self).Annotations[note+"public-ip"] != "192.0.2.200" {
			t.Errorf("without an answer to call %d leased %+v", k, l)
		}
		asked.wantBounded(t)
		if asked.count("") <= k {
			if k < 2 {
				t.Errorf("Acquire makes %d calls only", k)
			}
			return
		}
		if !waits.has(taskAcquire, "cut off by the test") || !waits.has(taskAcquire+": ok") {
			t.Errorf("that call %d failed was not told of, or not that it is over: %q", k, waits.text)
		}
	}
}

// watchFails: the same of Watch, from the first list to what it writes, for a store that knows nobody and for one that
// knows a peer.
func watchFails(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	w, _, reader := s.reader(t, nil)
	testwait.Until(t, "a peer", w.leasing("peer-001 10.244.1.0/24"))
	for _, earlier := range []json.RawMessage{nil, reader.Checkpoint()} {
		for k := range 9 {
			s.watchFails(t, earlier, k)
		}
	}
}

func (s *server) watchFails(t *testing.T, earlier json.RawMessage, k int) {
	t.Helper()
	for _, name := range []string{self, "kubetest-peer-002"} {
		if s.hasNode(t, name) {
			s.deleteNode(t, name)
		}
	}
	s.createNode(t, flannelNode(2))
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	store, waits := s.open(t, Options{SetNetworkUnavailable: true})
	store.Restore(earlier)
	acquire(t, store, want4)
	s.annotate(t, self, map[string]any{"public-ip": "203.0.113.9"})
	asked := asks(store)
	asked.fail = func(n int) bool { return n == k }
	store.Network(true, "", "")
	store.Event("Normal", "Failing", "an event")
	w := watching(t, store)
	testwait.Until(t, "both peers", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
	testwait.Until(t, "the condition, the lease and the event", func() bool {
		n := s.node(t, self)
		return networkCondition(n).Status == "False" && n.Annotations[note+"public-ip"] == "192.0.2.200" &&
			len(s.eventsOf(t, self, "Failing")) > 0
	})
	if calls := asked.said(); len(calls) > k {
		testwait.Until(t, "word of "+calls[k], func() bool { return waits.has("cut off by the test") })
		testwait.Until(t, "word that it is over", func() bool { return waits.has(": ok") })
	}
	for _, snap := range w.each() {
		if len(snap.Peers) != 2 {
			t.Errorf("without an answer to call %d a snapshot has the peers %v", k, names(snap))
		}
	}
	asked.wantBounded(t)
	if n := len(s.eventsOf(t, self, "Failing")); n != 1 {
		t.Errorf("without an answer to call %d the event is there %d times", k, n)
	}
	must(t, s.admin.rest.Delete().Namespace("default").Resource("events").Do(t.Context()).Error())
}

// slowWait: while there is no podCIDR the API server is asked once a second and told once; the end of the context ends it.
func slowWait(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	store, waits := s.open(t, Options{})
	asked := asks(store)
	ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
	defer cancel()
	l, err := store.Acquire(ctx, want4)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errNoPodCIDR) || len(l.Stacks) > 0 {
		t.Errorf("got %+v, %v; want that the time is up, and why", l, err)
	}
	if gets := asked.count("GET whole nodes/"); gets < 3 || gets > 4 || asked.count("POST") != 1 || asked.count("PATCH") != 0 {
		t.Errorf("asked %q, want one event and the Node once a second", asked.calls)
	}
	if len(waits.text) != 1 {
		t.Errorf("told %q, want one reason", waits.text)
	}
}

// callersLease: what was acquired is what is kept, whatever the caller does with its own afterwards.
func callersLease(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	want := want4
	want.Stacks = slices.Clone(want4.Stacks)
	got := acquire(t, store, want)
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return w.last().Local.Equal(got) })
	want.Stacks[0] = subnet.Stack{}
	s.annotate(t, self, map[string]any{"public-ip": "203.0.113.9"})
	testwait.Until(t, "the address as it was acquired", func() bool {
		return s.node(t, self).Annotations[note+"public-ip"] == "192.0.2.200"
	})
	if !w.last().Local.Equal(got) {
		t.Errorf("the local lease is %+v, want %+v", w.last().Local, got)
	}
}

// lastLease: what the annotations say is the last lease if it is one, of this node or another.
func lastLease(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	bad, stranger := flannelNode(2), flannelNode(3)
	bad.Annotations[note+"public-ip"] = "here"
	delete(stranger.Annotations, note+"kube-subnet-manager")
	s.createNode(t, bad)
	s.createNode(t, stranger)
	store, _ := s.open(t, Options{Node: "kubetest-peer-001"})
	for name, want := range map[string]string{"": "kubetest-peer-001", "kubetest-peer-001": "kubetest-peer-001", bad.Name: "", stranger.Name: ""} {
		l, ok, err := store.Last(t.Context(), subnet.Lease{Node: name})
		if err != nil || ok != (want != "") || l.Node != want || len(l.Stacks) > 0 != ok {
			t.Errorf("the last lease of %q is %+v, %t, %v; want one of %q", name, l, ok, err, want)
		}
	}
	_, ok, err := store.Last(t.Context(), subnet.Lease{Node: "kubetest-nobody"})
	if wantError(t, err, "does not exist"); ok {
		t.Error("a node that does not exist has a lease")
	}
}

// redialled: Redial closes the connections that there are, and the store goes on with new ones.
func redialled(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	others := s.wire.Open()
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	old := s.wire.Open()
	maps.DeleteFunc(old, func(c net.Conn, _ bool) bool { return others[c] })
	if len(old) == 0 {
		t.Fatal("the store has no connection")
	}
	store.Redial()
	testwait.Until(t, "the connections to be closed", func() bool {
		now := s.wire.Open()
		maps.DeleteFunc(old, func(c net.Conn, _ bool) bool { return !now[c] })
		return len(old) == 0
	})
	acquire(t, store, want4)
}
