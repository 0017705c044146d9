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
