package kube

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// alone are the sources of a Watch that reads Nodes.
func alone(c *nodes) *sources { return &sources{changed: c.changed, own: c, all: c} }

// delivering runs deliver in a bubble of time of its own; the returned function gives what came since it was last called.
func delivering(t *testing.T, s *Store, c *nodes) func() []string {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var got []string
	begin := time.Now()
	go s.deliver(ctx, alone(c), func(snap subnet.Snapshot) {
		got = append(got, fmt.Sprintf("%s: %d peers, local %v, %v", time.Since(begin), len(snap.Peers), snap.Local.Stacks, snap.NodeIPs))
	})
	return func() []string {
		synctest.Wait()
		all := got
		got, begin = nil, time.Now()
		return all
	}
}

// TestDeliver: a snapshot comes ten milliseconds after the first of several changes, and none if it says what the last one
// said.
func TestDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, 0, pool4)
		defer c.queue.ShutDown()
		s := &Store{annotations: c.annotations, pools: []subnet.Pool{pool4}, node: self, own: own{changed: make(chan struct{}, 1)}}
		c.synced = false
		since := delivering(t, s, c)
		want := func(what string, want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			if got := since(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: got %q, want %q", what, got, want)
			}
		}
		want("before the first list")
		must(t, c.Replace(nil, "1"))
		want("the first list", "10ms: 0 peers, local [], []")
		for i := range 3 {
			n := flannelNode(i + 1)
			n.UID = "uid"
			c.podCIDRs.put("uid", "10.244.1.0/24")
			must(t, c.Add(metadataOf(n)))
			time.Sleep(3 * time.Millisecond)
		}
		want("three changes within ten milliseconds", "10ms: 3 peers, local [], []")
		c.notify()
		want("a notice, and nothing has changed")
		mine := &node{}
		mine.Name, mine.Spec.PodCIDR = self, "10.244.200.0/24"
		mine.Status.Addresses = []struct{ Type, Address string }{{"InternalIP", "192.0.2.10"}}
		c.putOwn(mine)
		want("another address of the own node", "10ms: 3 peers, local [], [192.0.2.10]")
		c.putOwn(mine)
		c.notify()
		want("the same again")
		s.own.want = &want4
		c.notify()
		want("the own lease", "10ms: 3 peers, local "+fmt.Sprint([]subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.200.0/24"),
			Underlay: want4.Stacks[0].Underlay, Data: want4.Stacks[0].Data}})+", [192.0.2.10]")
	})
}

// TestRest: after a snapshot that took long to make the next one waits, and not for long.
func TestRest(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	s := &Store{annotations: c.annotations, node: self}
	at := make(chan time.Time, 2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.deliver(ctx, alone(c), func(subnet.Snapshot) { at <- time.Now() })
	}()
	defer func() { cancel(); <-done }()
	c.mu.Lock() // the list was a change
	testwait.Pause(t, time.Second, "the snapshot takes long to make: a rest that is not bounded would exceed testwait.Limit")
	c.version++
	c.mu.Unlock()
	next := func() (moment time.Time) {
		select {
		case moment = <-at:
		case <-time.After(testwait.Limit):
			t.Fatal("no snapshot")
		}
		return moment
	}
	first := next()
	c.mu.Lock()
	c.version++
	c.mu.Unlock()
	c.notify()
	if gap := next().Sub(first); gap < mostRest {
		t.Errorf("the next snapshot came after %s, want %s at least", gap, mostRest)
	}
}

// TestLocal: what a reader takes for this node's lease, and what stays of an acquired one.
func TestLocal(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	s := &Store{annotations: c.annotations, pools: []subnet.Pool{pool4}, node: self}
	is := func(what string, subnets string, backend string) {
		t.Helper()
		l := s.localNow(c)
		got := ""
		for _, st := range l.Stacks {
			got += st.Subnet.String()
		}
		if l.Node != self || got != subnets || l.Backend != backend {
			t.Errorf("%s: got %+v, want subnet %q and backend %q", what, l, subnets, backend)
		}
	}
	put := func(managed, podCIDR, ip string) {
		n := &node{ObjectMeta: flannelNode(1).ObjectMeta}
		n.Name, n.Spec.PodCIDR = self, podCIDR
		n.Annotations[note+"kube-subnet-manager"], n.Annotations[note+"public-ip"] = managed, ip
		c.putOwn(n)
	}
	is("before the Node was read", "", "")
	put("true", "10.244.7.0/24", "192.0.2.1")
	is("a lease", "10.244.7.0/24", "vxlan")
	put("false", "10.244.7.0/24", "192.0.2.1")
	is("the annotations of one that is no peer", "", "")
	put("true", "10.244.7.0/24", "here")
	is("nonsense", "", "")
	s.own.want, s.own.lease = &want4, subnet.Lease{Node: self, Backend: "earlier"}
	put("true", "", "192.0.2.1")
	is("acquired, and no podCIDR", "", "earlier")
	put("true", "10.244.8.0/24", "192.0.2.1")
	is("acquired, with a podCIDR", "10.244.8.0/24", "vxlan")
	put("true", "", "192.0.2.1")
	is("acquired, and no podCIDR any more", "10.244.8.0/24", "vxlan")
}

// TestRepairsRest: whoever writes against the store is answered five times at once, and once a second then.
func TestRepairsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := New(t.Context(), Options{APIURL: "http://192.0.2.1", Node: self, Pools: []subnet.Pool{pool4}})
		must(t, err)
		writes := 0
		asks(store).fail = func(int) bool {
			writes++
			return true
		}
		c := cacheOf(t, 0, pool4)
		defer c.queue.ShutDown()
		mine := &node{}
		mine.Name, mine.Spec.PodCIDR = self, "10.244.200.0/24"
		c.putOwn(mine)
		store.own.want = &want4
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			store.keep(ctx, alone(c))
		}()
		for second := range 4 {
			for range 10 {
				store.own.notify()
				synctest.Wait()
			}
			if want := 5 + second; writes != want {
				t.Errorf("after %d s there were %d repairs, want %d", second, writes, want)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		cancel()
		<-done
	})
}
