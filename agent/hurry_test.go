package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate/fake"
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
