package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestOldSubnet holds that a bridge with the gateway address of an earlier lease keeps it exactly
// as long as pods of that lease live, and that the log tells of them.
func TestOldSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var pods atomic.Int32
		pods.Store(2)
		n.live = func(p netip.Prefix) (int, error) {
			if p.Masked() == netip.MustParsePrefix("10.244.77.0/24") {
				return int(pods.Load()), nil
			}
			return 0, nil
		}
		stop := n.start()
		defer stop()
		n.eventually("the agent is ready", n.ready)
		n.must(n.kernel.Run("ip addr add 10.244.77.1/24 dev cni0"))
		n.must(n.kernel.Run("ip addr add 10.244.78.1/24 dev cni0"))
		n.eventually("the log tells of the pods", func() bool { return strings.Contains(n.log.String(), "2 pods have addresses of 10.244.77.0/24") })
		n.eventually("the address without pods is gone", func() bool { return !strings.Contains(n.state(), "10.244.78.1/24") })
		if !strings.Contains(n.state(), "10.244.77.1/24 dev cni0") {
			t.Fatalf("the pods lost their gateway:\n%s", n.state())
		}
		pods.Store(0)
		n.eventually("the address without pods is gone", func() bool {
			n.agent.trigger() // as the kernel's word of a deleted veth does
			time.Sleep(20 * time.Millisecond)
			return !strings.Contains(n.state(), "10.244.77.1/24")
		})
	})
}

// TestEarlierSubnets: a node whose lease moved publishes the subnet before at once, and as long as it has pods of it, also across
// restarts. Peers lead packets there.
func TestEarlierSubnets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var pods atomic.Int32
		pods.Store(2)
		n.live = func(p netip.Prefix) (int, error) {
			if p.Masked() == netip.MustParsePrefix("10.244.9.0/24") {
				return int(pods.Load()), nil
			}
			return 0, nil
		}
		n.addPeer("node1", "10.244.9.0/24", "192.168.33.101", "0a:00:00:00:00:01")
		stop := n.start()
		n.eventually("the node has its lease", func() bool { return n.ready() && n.has("addr 10.244.9.1/24 dev cni0") })
		stop()
		n.setPeer("node1", "10.244.77.0/24", "192.168.33.101", "0a:00:00:00:00:01")
		published := func() []netip.Prefix { return n.peers()[0].Stacks[0].Earlier() }
		store := &refusing{}
		n.tune = func(c *Config) { store.Store, c.Store = c.Store, store }
		for range 2 {
			stop = n.start()
			n.eventually("the subnet of before is published", func() bool { return slices.Equal(published(), prefixes("10.244.9.0/24")) })
			n.eventually("the node has both", func() bool {
				return n.ready() && n.has("addr 10.244.77.1/24 dev cni0") && n.has("addr 10.244.9.1/24 dev cni0") &&
					n.has("src 10.244.9.0/24 dst 10.244.0.0/16 return")
			})
			time.Sleep(2 * resync)
			if got := published(); !slices.Equal(got, prefixes("10.244.9.0/24")) {
				t.Errorf("later %v is published", got)
			}
			stop()
		}
		if asked := len(store.set(false)); asked > 3 {
			t.Errorf("the record was written %d times, want at most twice after the move and once since", asked)
		}
		stop = n.start()
		defer stop()
		n.eventually("ready", n.ready)
		pods.Store(0)
		n.eventually("nothing is left of it", func() bool {
			n.agent.trigger()
			return len(published()) == 0 && !n.has("10.244.9.")
		})
	})
}

// TestEarlierSubnetsOfPeers: packets to a peer's pods of a subnet before its own go there, until somebody has it.
func TestEarlierSubnetsOfPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		moved := peerLease("node2", "10.244.2.0/24", "192.168.33.102", "0a:00:00:00:00:02")
		moved.Stacks[0] = moved.Stacks[0].WithEarlier(prefixes("10.244.8.0/24"))
		n.setPeers([]subnet.Lease{moved})
		stop := n.start()
		defer stop()
		const old = "route 10.244.8.0/24 via 10.244.8.0 dev flannel.1 onlink"
		n.eventually("both subnets lead to the peer", func() bool { return n.ready() && n.has(peerRoute) && n.has(old) })
		n.setPeers(append(n.peers(), peerLease("node3", "10.244.8.0/24", "192.168.33.103", "0a:00:00:00:00:03")))
		n.eventually("the new holder has it", func() bool { return n.has("neigh 10.244.8.0 lladdr 0a:00:00:00:00:03") })
		if got := n.logs("a peer is left out"); got > 0 {
			t.Errorf("%d peers were left out", got)
		}
	})
}

// TestKeptGateways: an address of the bridge that a plan would delete stays while pods have it, or
// in doubt; and to find out reports nothing, since a dry run does that too.
func TestKeptGateways(t *testing.T) {
	addr := func(dev, prefix string) netstate.Addr { return netstate.Addr{Dev: dev, Prefix: prefixes(prefix)[0]} }
	gone, empty, unknown := addr("cni0", "10.244.1.1/24"), addr("cni0", "10.244.2.1/24"), addr("cni0", "10.244.3.1/24")
	elsewhere, stays := addr("flannel.1", "10.244.1.0/32"), addr("cni0", "10.244.4.1/24")
	second, half := addr("cni0", "10.244.4.9/24"), addr("cni0", "10.244.4.1/25")
	plan := netstate.Plan{{Was: gone}, {Was: empty}, {Was: unknown}, {Was: elsewhere}, {Was: stays, Want: stays},
		{Was: second}, {Was: half}}
	want := netstate.NewState(stays)
	var log bytes.Buffer
	store := &reporter{}
	a := New(Config{Planner: Planner{Base: backend.BaseConfig{Bridge: "cni0"}}, Store: store, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if kept := a.keptGateways(plan, want); kept != nil {
		t.Errorf("kept %v although nobody counts pods", kept)
	}
	broken := errors.New("no answer")
	a.Live = func(p netip.Prefix) (int, error) {
		switch p {
		case empty.Prefix:
			return 0, nil
		case unknown.Prefix:
			return 0, broken
		}
		return 3, nil
	}
	kept := a.keptGateways(plan, want)
	if want := []keptGateway{{gone, 0, errUncounted}, {empty, 0, errUncounted}, {unknown, 0, errUncounted}}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	a.reportKeptGateways(kept)
	a.count(<-a.oldSubnets.asked)
	kept = a.keptGateways(plan, want)
	if want := []keptGateway{{gone, 3, nil}, {unknown, 0, broken}}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	if log.Len() > 0 || len(store.events) > 0 {
		t.Errorf("reported too early: %s, %q", log.String(), store.events)
	}
	for range 2 {
		a.reportKeptGateways(kept)
	}
	if len(store.events) != 1 || !strings.HasPrefix(store.events[0], "PodsOfOldLease: 3 pods have addresses of 10.244.1.0/24") ||
		strings.Count(log.String(), "pods of an old lease") != 1 || strings.Count(log.String(), "count the pods of 10.244.3.0/24") != 1 {
		t.Errorf("reported %q, logged\n%s", store.events, log.String())
	}
}
