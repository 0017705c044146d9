package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
)

// TestHurry writes what a join changes without a look, and leaves to a look all that is more than that.
func TestHurry(t *testing.T) {
	m := newModel(t, nil)
	if m.agent.hurry(t.Context()) != lookNow {
		t.Error("hurried before the first look")
	}
	m.agent.pass(t.Context())
	blind := fake.Faults{Observe: func() error { return errors.New("nobody may look") }}
	m.kernel.SetFaults(blind)
	m.join() // node2
	if m.agent.hurry(t.Context()) == lookNow {
		t.Error("a join needs a look")
	}
	m.leave()
	m.join()
	if m.agent.hurry(t.Context()) == lookNow {
		t.Error("a leave with a join needs a look")
	}
	m.kernel.SetFaults(fake.Faults{})
	have, err := m.kernel.Observe(t.Context(), nil)
	must(t, err)
	if !strings.Contains(have.String(), "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink\n") {
		t.Errorf("without a look the kernel has\n%s", have)
	}
	m.snap.Local = m.lease("node1", 1, 2)
	m.publish()
	if m.agent.hurry(t.Context()) != lookNow {
		t.Error("this node's own lease changed, and no look was needed")
	}
}

// TestHurryFails asks for a look when the kernel is not what the agent takes it for.
func TestHurryFails(t *testing.T) {
	m := newModel(t, nil)
	m.agent.pass(t.Context())
	must(t, m.kernel.Run("ip link del flannel.1"))
	m.join()
	if m.agent.hurry(t.Context()) != lookNow {
		t.Error("wrote to a device that is gone")
	}
	m.agent.pass(t.Context())
	m.leave()
	if m.agent.hurry(t.Context()) == lookNow {
		t.Error("a leave needs a look after all was repaired")
	}
}

// TestJoined: only a few more peers, and nothing else, are asked for alone.
func TestJoined(t *testing.T) {
	m := newModel(t, nil)
	m.join()
	m.agent.pass(t.Context())
	more := func(n int) (leases []subnet.Lease) {
		for i := range n {
			leases = append(leases, peerLease(fmt.Sprintf("more%d", i), fmt.Sprintf("10.244.%d.0/24", 100+i), fmt.Sprintf("192.168.34.%d", 1+i),
				fmt.Sprintf("0a:00:00:00:99:%02x", i)))
		}
		return leases
	}
	for name, test := range map[string]struct {
		change func(*subnet.Snapshot)
		ok     bool
	}{
		"too many":    {func(s *subnet.Snapshot) { s.Peers = append(s.Peers, more(manyJoins+1)...) }, false},
		"a leave":     {func(s *subnet.Snapshot) { s.Peers = more(1) }, false},
		"a skip":      {func(s *subnet.Snapshot) { s.Peers, s.Skips = append(s.Peers, more(1)...), []subnet.Skip{{Node: "x"}} }, false},
		"a claim":     {func(s *subnet.Snapshot) { s.Claims = map[subnet.Claim]int{{Node: "x"}: 1} }, false},
		"one":         {func(s *subnet.Snapshot) { s.Peers = append(s.Peers, more(1)...) }, true},
		"just so few": {func(s *subnet.Snapshot) { s.Peers = append(s.Peers, more(manyJoins)...) }, true},
	} {
		before := m.agent.asked
		m.agent.asked.want = maps.Clone(before.want)
		snap := *before.snap
		snap.Peers = slices.Clone(snap.Peers)
		test.change(&snap)
		if plan, ok := m.agent.joined(&snap); ok != test.ok || ok != (len(plan) > 0) {
			t.Errorf("%s: joined %t, %d changes", name, ok, len(plan))
		}
		m.agent.asked = before
	}
}

// TestUntilLook has joins that do not end put a look off, but not for ever.
func TestUntilLook(t *testing.T) {
	a := New(Config{})
	if d := a.untilLook(); d != settleAfter {
		t.Errorf("after the first join the look waits %s, want %s", d, settleAfter)
	}
	for age, most := range map[time.Duration]time.Duration{judgeBy / 2: settleAfter, judgeBy - settleAfter/2: settleAfter / 2, 2 * judgeBy: 0} {
		a.unseen = time.Now().Add(-age)
		if d := a.untilLook(); d > most || d < 0 {
			t.Errorf("%s after the first join the look waits %s, want at most %s", age, d, most)
		}
	}
}

// TestAdded tells leases that are new from ones that changed or went.
func TestAdded(t *testing.T) {
	list := func(nodes string) (leases []subnet.Lease) {
		for name := range strings.FieldsSeq(nodes) {
			leases = append(leases, subnet.Lease{Node: name})
		}
		return leases
	}
	for _, test := range []struct {
		before, now, more string
		only              bool
	}{
		{"", "", "", true}, {"a b", "a b", "", true}, {"a b", "a b c", "c", true}, {"a b", "x a y b z", "x y z", true}, {"", "a", "a", true},
		{"a b", "a", "", false}, {"a b", "b a", "b", false}, {"a b", "a c", "c", false},
	} {
		more, only := added(list(test.before), list(test.now))
		if only != test.only || only && !slices.EqualFunc(more, list(test.more), subnet.Lease.Equal) {
			t.Errorf("%q to %q: %v, only %t; want %q, %t", test.before, test.now, more, only, test.more, test.only)
		}
	}
}
