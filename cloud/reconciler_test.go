package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/subnet"
)

var pools = []subnet.Pool{pool("10.244.0.0/15", 24)}

func pool(network string, bits int) subnet.Pool {
	p := netip.MustParsePrefix(network)
	return subnet.Pool{Network: p, SubnetLen: bits}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func view(own string, peers ...string) cloud.View {
	lease := func(s string) subnet.Lease {
		return subnet.Lease{Node: s, Stacks: []subnet.Stack{{Subnet: prefix(s)}}}
	}
	v := cloud.View{Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Snapshot: subnet.Snapshot{Local: lease(own)}, Synced: true}
	for _, p := range peers {
		v.Snapshot.Peers = append(v.Snapshot.Peers, lease(p))
	}
	return v
}

// kept is a Reconciler that runs in a bubble of virtual time.
type kept struct {
	mu     sync.Mutex
	health cloud.Health
	record cloud.Record
	views  chan cloud.View
}

func keep(ctx context.Context, api cloud.Cloud) *kept { return resume(ctx, api, cloud.Record{}) }

// resume starts a Reconciler with what an earlier one left.
func resume(ctx context.Context, api cloud.Cloud, earlier cloud.Record) *kept {
	k := &kept{views: make(chan cloud.View), record: earlier}
	r := cloud.Reconciler{Cloud: api, Pools: pools, Record: earlier, Log: slog.New(slog.DiscardHandler), Report: func(h cloud.Health) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.health = h
	}, Save: func(r cloud.Record) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.record = r
	}}
	go func() { _ = r.Run(ctx, k.views) }()
	return k
}

func (k *kept) Health() cloud.Health {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.health
}

// troubled asks for exactly these troubles.
func troubled(t *testing.T, k *kept, want ...string) {
	t.Helper()
	var got []string
	for _, trouble := range k.Health().Troubles {
		got = append(got, trouble.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("troubles %v, want %v", got, want)
	}
}

// network returns one with a NIC that forwards.
func network() *fake.Network {
	n := &fake.Network{ID: "vpc-1"}
	n.AddNIC(fake.NIC{ID: "eni-1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Forwards: true})
	return n
}

// TestTroubles: what is wrong is named, and no longer when it is right again.
func TestTroubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := network()
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24", "10.244.2.0/24")
		time.Sleep(3 * time.Minute)
		troubled(t, k, cloud.PeerUnrouted)
		m.Set(route("10.244.1.0/24", "eni-1"), route("10.244.2.0/24", "eni-2"))
		time.Sleep(16 * time.Minute)
		troubled(t, k)
		m.SetForwards("eni-1", false)
		time.Sleep(80 * time.Minute)
		troubled(t, k, cloud.ForwardingOff)
		m.Break(fake.Faults{Fail: func(method string) error {
			if method == "Apply" {
				return cloud.ErrDenied
			}
			return nil
		}})
		m.Set(route("10.244.2.0/24", "eni-2"))
		time.Sleep(16 * time.Minute)
		troubled(t, k, cloud.ForwardingOff, cloud.Denied, cloud.RouteMissing)
	})
}

// TestRestart: an agent that is started again while the API is away is ready if its routes were seen before, for the same
// lease and addresses only.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := network()
		ctx, stop := context.WithCancel(t.Context())
		k := keep(ctx, m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(time.Minute)
		stop()
		synctest.Wait()
		if !k.record.Seen || len(k.record.Routes) != 1 {
			t.Fatalf("record %+v", k.record)
		}
		m.Break(fake.Faults{Fail: func(string) error { return errors.New("connection refused") }})
		for own, seen := range map[string]bool{"10.244.1.0/24": true, "10.244.7.0/24": false} {
			again := resume(t.Context(), m.Node("eni-1"), k.record)
			again.views <- view(own)
			time.Sleep(time.Minute)
			if h := again.Health(); h.Seen != seen || h.Err == nil {
				t.Errorf("%s: %+v", own, h)
			}
		}
		moved := view("10.244.1.0/24")
		moved.Local = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		again := resume(t.Context(), m.Node("eni-1"), k.record)
		again.views <- moved
		time.Sleep(time.Minute)
		if again.Health().Seen {
			t.Error("the routes lead to another address, and count as seen")
		}
	})
}

func equal(t *testing.T, got []cloud.Route, want ...cloud.Route) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func route(dst, target string) cloud.Route { return cloud.Route{Dst: prefix(dst), Target: target} }

// TestHeals: what is missing, wrong or dead is put back, an earlier lease's route goes, and no other route is touched.
func TestHeals(t *testing.T) {
	own, other := route("10.244.1.0/24", "eni-1"), route("10.244.2.0/24", "eni-2")
	foreign := []cloud.Route{other, route("0.0.0.0/0", "igw-1"), route("10.244.0.0/16", "eni-1"), route("192.168.0.0/24", "eni-1")}
	dead := own
	dead.Target, dead.State = "eni-9", cloud.Blackhole
	for name, before := range map[string][]cloud.Route{
		"nothing":          nil,
		"another target":   {route("10.244.1.0/24", "eni-7")},
		"a blackhole":      {dead},
		"an earlier lease": {own, route("10.244.9.0/24", "eni-1")},
		"all is right":     {own},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &fake.Network{}
				m.Set(append(slices.Clone(foreign), before...)...)
				k := keep(t.Context(), m.Node("eni-1"))
				k.views <- view("10.244.1.0/24", "10.244.2.0/24")
				time.Sleep(3 * time.Minute)
				equal(t, m.Routes(), append(slices.Clone(foreign), own)...)
				if h := k.Health(); !h.Seen || !h.Wrong.IsZero() || h.Err != nil {
					t.Errorf("health %+v", h)
				}
				if _, writes := m.Calls(); name == "all is right" && writes != 0 {
					t.Errorf("%d writes, want none", writes)
				}
			})
		})
	}
}

// TestNewSubnet: a node that gets another lease is not ready until its new route was seen, and its old route goes.
func TestNewSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := network()
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(5 * time.Minute)
		m.Break(fake.Faults{Fail: func(string) error { return cloud.ErrThrottled }})
		k.views <- view("10.244.7.0/24")
		time.Sleep(time.Minute)
		if k.Health().Seen {
			t.Error("the new route was not seen, and the node counts as reached")
		}
		m.Break(fake.Faults{})
		time.Sleep(10 * time.Minute)
		equal(t, m.Routes(), route("10.244.7.0/24", "eni-1"))
		if h := k.Health(); !h.Seen || !h.Wrong.IsZero() {
			t.Errorf("health %+v", h)
		}
	})
}

// TestDeletedByHand: a route is back within the time between two looks, and peers that come and go cost no call.
func TestDeletedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(3 * time.Minute)
		m.Set()
		time.Sleep(15 * time.Minute)
		equal(t, m.Routes(), route("10.244.1.0/24", "eni-1"))
		time.Sleep(3 * time.Minute)
		before, _ := m.Calls()
		for i := range 100 {
			k.views <- view("10.244.1.0/24", fmt.Sprintf("10.244.%d.0/24", i+2))
		}
		synctest.Wait()
		if after, _ := m.Calls(); after != before {
			t.Errorf("%d calls for peers", after-before)
		}
	})
}

// TestLag: a read that is older than a write is no reason to write again.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		m.Break(fake.Faults{Lag: 20 * time.Second})
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(3 * time.Minute)
		if _, writes := m.Calls(); writes != 1 || !k.Health().Seen {
			t.Errorf("%d writes, health %+v", writes, k.Health())
		}
	})
}

// TestAway: an API that is away for an hour hurts nobody, and is not stormed when it is back.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		m := &fake.Network{}
		m.Break(fake.Faults{Fail: func(string) error {
			if away.Load() {
				return errors.New("connection refused")
			}
			return nil
		}})
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(3 * time.Minute)
		away.Store(true)
		before, _ := m.Calls()
		time.Sleep(time.Hour)
		if h := k.Health(); !h.Seen || !h.Wrong.IsZero() || h.Err == nil {
			t.Errorf("while it is away: %+v", h)
		}
		during, _ := m.Calls()
		if during-before > 40 {
			t.Errorf("%d calls in an hour", during-before)
		}
		away.Store(false)
		time.Sleep(10 * time.Minute)
		if after, writes := m.Calls(); after-during > 10 || writes != 1 || k.Health().Err != nil {
			t.Errorf("when it is back: %d calls, %d writes, %+v", after-during, writes, k.Health())
		}
	})
}

// TestFull: a full table makes no node ready, and is asked again every few minutes only.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		m.Break(fake.Faults{Full: 1})
		m.Set(route("10.0.0.0/8", "x"))
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(time.Hour)
		all, _ := m.Calls()
		if h := k.Health(); h.Seen || !errors.Is(h.Err, cloud.ErrFull) || all > 60 {
			t.Errorf("%d calls, %+v", all, h)
		}
		troubled(t, k, cloud.TableFull, cloud.RouteMissing)
	})
}

// disputed writes something four times a minute for an hour, and asks for the finding about it most of the time: now and then
// the reconciler tries again.
func disputed(t *testing.T, k *kept, write func()) {
	t.Helper()
	named := 0
	for range 240 {
		time.Sleep(15 * time.Second)
		write()
		if slices.ContainsFunc(k.Health().Troubles, func(t cloud.Trouble) bool { return t.ID == cloud.RouteWrong }) {
			named++
		}
	}
	if named < 120 {
		t.Errorf("it was named %d of 240 times", named)
	}
}

// TestDispute: a route that somebody else keeps writing is left alone after three times, and reported.
func TestDispute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		disputed(t, k, func() { m.Set(route("10.244.1.0/24", "eni-9")) })
		if _, writes := m.Calls(); writes > 1+3*7 {
			t.Errorf("%d writes in an hour", writes)
		}
	})
}

// TestJanitor: only what is dead, leased by nobody and seen to be so for ten minutes goes, and only the oldest node deletes.
func TestJanitor(t *testing.T) {
	dead := cloud.Route{Dst: prefix("10.244.5.0/24"), Target: "eni-5", State: cloud.Blackhole}
	leased := cloud.Route{Dst: prefix("10.244.2.0/24"), Target: "eni-2", State: cloud.Blackhole}
	wide := cloud.Route{Dst: prefix("10.244.0.0/20"), Target: "eni-5", State: cloud.Blackhole}
	unsynced := view("10.244.1.0/24", "10.244.2.0/24")
	unsynced.Synced = false
	skips := view("10.244.1.0/24", "10.244.2.0/24")
	skips.Snapshot.Skips = []subnet.Skip{{}}
	for name, test := range map[string]struct {
		view cloud.View
		gone bool
	}{
		"the lowest":            {view("10.244.1.0/24"), true},
		"not the lowest":        {view("10.244.1.0/24", "10.244.0.0/24"), false},
		"not in sync":           {unsynced, false},
		"leases that are wrong": {skips, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &fake.Network{}
				m.Set(dead, leased, wide)
				k := keep(t.Context(), m.Node("eni-1"))
				test.view.Snapshot.Peers = append(test.view.Snapshot.Peers, subnet.Lease{Node: "two", Stacks: []subnet.Stack{{Subnet: leased.Dst}}})
				k.views <- test.view
				time.Sleep(9 * time.Minute)
				if !slices.Contains(m.Routes(), dead) {
					t.Error("it was deleted too early")
				}
				time.Sleep(time.Hour)
				if slices.Contains(m.Routes(), dead) == test.gone || !slices.Contains(m.Routes(), leased) || !slices.Contains(m.Routes(), wide) {
					t.Errorf("left: %v", m.Routes())
				}
			})
		})
	}
}
