package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// cluster is a harness with the test that it serves.
type cluster struct {
	t       *testing.T
	harness Harness
	pools   []subnet.Pool
}

func (c cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), testwait.Limit)
	c.t.Cleanup(cancel)
	return ctx
}

// lease returns what node i wants. Names sort as the numbers do: a store whose clock has seconds may order nodes
// that joined in the same one by name.
func (c cluster) lease(i int) subnet.Lease {
	l := subnet.Lease{Node: fmt.Sprintf("storetest-%03d", i), Backend: "vxlan"}
	for _, p := range c.pools {
		s := subnet.Stack{
			Underlay: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
			Data:     json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"0a:00:00:00:00:%02x"}`, i)),
		}
		if p.Family() == netstate.IPv6 {
			s.Underlay = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))
		}
		l.Stacks = append(l.Stacks, s)
	}
	return l
}

func (c cluster) store(want subnet.Lease) subnet.Store { return c.harness.Store(c.t, want) }

func (c cluster) acquire(s subnet.Store, want subnet.Lease) subnet.Lease {
	c.t.Helper()
	l, err := s.Acquire(c.ctx(), want)
	if err != nil {
		c.t.Fatalf("acquire for %s: %v", want.Node, err)
	}
	return l
}

// join acquires node i's lease, and does not watch: nobody repairs its record.
func (c cluster) join(i int) subnet.Lease {
	c.t.Helper()
	want := c.lease(i)
	return c.acquire(c.store(want), want)
}

func (c cluster) same(want, got subnet.Lease) {
	c.t.Helper()
	if !got.Equal(want) {
		c.t.Errorf("got lease\n%+v\nwant\n%+v", got, want)
	}
}

// peer returns the lease of the named node in s, or the zero Lease.
func peer(s subnet.Snapshot, node string) subnet.Lease {
	i := slices.IndexFunc(s.Peers, func(l subnet.Lease) bool { return l.Node == node })
	if i < 0 {
		return subnet.Lease{}
	}
	return s.Peers[i]
}

func skipped(s subnet.Snapshot, node string) bool {
	return slices.ContainsFunc(s.Skips, func(k subnet.Skip) bool { return k.Node == node && k.Detail != "" })
}

// watcher is a running Watch.
type watcher struct {
	t         *testing.T
	snapshots chan subnet.Snapshot
	last      *subnet.Snapshot
}

// watch runs Watch on the node of l, as a restarted agent does.
func (c cluster) watch(l subnet.Lease) *watcher {
	c.t.Helper()
	store := c.store(l)
	c.same(l, c.acquire(store, l))
	return c.watchStore(store)
}

// watchStore runs Watch until the test ends, and checks then that it returns nil.
func (c cluster) watchStore(store subnet.Store) *watcher {
	w := &watcher{t: c.t, snapshots: make(chan subnet.Snapshot, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var running atomic.Int32
	go func() {
		ended <- store.Watch(ctx, func(s subnet.Snapshot) {
			if running.Add(1) > 1 {
				c.t.Error("two snapshots at the same time")
			}
			w.snapshots <- s
			running.Add(-1)
		})
	}()
	c.t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				c.t.Errorf("watch ended with %v, want nil", err)
			}
		case <-time.After(testwait.Limit):
			c.t.Error("watch did not end with its context")
		}
	})
	return w
}

// until waits for a snapshot for which ok is true, beginning with the last one that was seen.
func (w *watcher) until(what string, ok func(subnet.Snapshot) bool) subnet.Snapshot {
	w.t.Helper()
	if w.last != nil && ok(*w.last) && len(w.snapshots) == 0 {
		return *w.last
	}
	expired := time.After(testwait.Limit)
	for {
		select {
		case s := <-w.snapshots:
			w.last = &s
			if ok(s) {
				return s
			}
		case <-expired:
			w.t.Fatalf("waited %s for %s; the last snapshot is %+v", testwait.Limit, what, w.last)
		}
	}
}

// sees waits until l is a peer, just as it is.
func (w *watcher) sees(l subnet.Lease) subnet.Snapshot {
	w.t.Helper()
	return w.until("peer "+l.Node+" as published", func(s subnet.Snapshot) bool { return peer(s, l.Node).Equal(l) })
}

// quiet checks for a while that ok is true of every snapshot, if there are any.
func (w *watcher) quiet(d time.Duration, ok func(subnet.Snapshot) bool) {
	w.t.Helper()
	timeout := time.After(d)
	for {
		select {
		case s := <-w.snapshots:
			if w.last = &s; !ok(s) {
				w.t.Errorf("got snapshot %+v", s)
			}
		case <-timeout:
			return
		}
	}
}
