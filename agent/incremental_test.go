package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
)

// TestIncremental writes what a join changes without reading the kernel, and leaves to a reconcile all
// that is more than that.
func TestIncremental(t *testing.T) {
	m := newModel(t, nil)
	if m.agent.incremental(t.Context()) {
		t.Error("it wrote before the first reconcile")
	}
	m.agent.reconcile(t.Context())
	blind := fake.Faults{Observe: func() error { return errors.New("nobody may read") }}
	m.kernel.SetFaults(blind)
	m.join() // node2
	if !m.agent.incremental(t.Context()) {
		t.Error("a join needs a reconcile")
	}
	m.leave()
	m.join()
	if !m.agent.incremental(t.Context()) {
		t.Error("a leave with a join needs a reconcile")
	}
	m.kernel.SetFaults(fake.Faults{})
	have, err := m.kernel.Observe(t.Context(), nil)
	must(t, err)
	if !strings.Contains(have.String(), "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink\n") {
		t.Errorf("without a reconcile the kernel has\n%s", have)
	}
	m.snap.Local = m.lease("node1", 1, 2)
	m.publish()
	if m.agent.incremental(t.Context()) {
		t.Error("this node's own lease changed, and no reconcile was needed")
	}
}

// TestIncrementalFails asks for a reconcile when the kernel is not what the agent takes it for.
func TestIncrementalFails(t *testing.T) {
	m := newModel(t, nil)
	m.agent.reconcile(t.Context())
	must(t, m.kernel.Run("ip link del flannel.1"))
	m.join()
	if m.agent.incremental(t.Context()) {
		t.Error("wrote to a device that is gone")
	}
	m.agent.reconcile(t.Context())
	m.leave()
	if !m.agent.incremental(t.Context()) {
		t.Error("a leave needs a reconcile after all was repaired")
	}
	m.kernel.SetFaults(fake.Faults{Change: func(netstate.Change) error { return errors.New("no room") }})
	m.join()
	if m.agent.incremental(t.Context()) {
		t.Error("what was refused counts as written")
	}
	m.kernel.SetFaults(fake.Faults{})
	m.join()
	if m.agent.incremental(t.Context()) {
		t.Error("wrote again before a reconcile, although a part of the last change may be there")
	}
}

// TestVerify: what was written without reading the kernel is verified a fifth of a second later and
// not again, however many nodes join meanwhile, and what the kernel has lost by then is repaired.
func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, nil)
		sleep := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		var mu sync.Mutex
		var all []time.Time
		observed := observed{m.kernel, func() { mu.Lock(); defer mu.Unlock(); all = append(all, time.Now()) }}
		reads := func() []time.Time { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
		m.agent.Kernel = observed
		has := func(route string) bool {
			have, err := m.kernel.Observe(t.Context(), nil)
			must(t, err)
			return strings.Contains(have.String(), route)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group errgroup.Group
		group.Go(func() error { return m.agent.watchKernel(ctx) })
		group.Go(func() error { return m.agent.reconcileLoop(ctx) })
		sleep(time.Second)
		before, began := len(reads()), time.Now()
		for number := range 4 {
			m.snap.Peers = append(m.snap.Peers, m.lease(fmt.Sprint("node", 2+number), 2+number, 1))
			m.publish()
			loop.Notify(m.agent.leases.changed)
			synctest.Wait()
			if !has(fmt.Sprintf("route 10.244.%d.0/24", 2+number)) {
				t.Errorf("join %d waits", number)
			}
			sleep(40 * time.Millisecond)
		}
		must(t, m.kernel.Run("ip route del 10.244.2.0/24"))
		sleep(30 * time.Millisecond)
		if r := reads()[before:]; len(r) > 0 {
			t.Errorf("the kernel was read %s after the first write", r[0].Sub(began))
		}
		sleep(10*time.Millisecond + time.Millisecond)
		if r := reads()[before:]; len(r) == 0 || r[0].Sub(began) != verifyDelay || !has("route 10.244.2.0/24") {
			t.Errorf("after %s the kernel was read at %v", verifyDelay, r)
		}
		sleep(time.Second)
		if r := reads()[before:]; len(r) > 4 {
			t.Errorf("the kernel was read %d times, want twice for the repair and once or twice more", len(r))
		}
		cancel()
		must(t, group.Wait())
	})
}

// routesOnly is a backend with one object for each peer.
type routesOnly struct{ backend.Backend }

func (r routesOnly) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	want, skips := r.Backend.Desired(node, snap)
	maps.DeleteFunc(want, func(k netstate.Key, _ netstate.Object) bool {
		return k.Kind == netstate.KindNeigh || k.Kind == netstate.KindFDB
	})
	return want, skips
}

// TestVerifyOneChange: also a single change is written, and verified.
func TestVerifyOneChange(t *testing.T) {
	m := newModel(t, nil)
	m.agent.Backend = routesOnly{m.agent.Backend}
	m.agent.reconcile(t.Context())
	m.join() // node2
	if !m.agent.incremental(t.Context()) || time.Until(m.agent.loop.verifyAt) <= 0 {
		t.Errorf("it is to be verified at %s", m.agent.loop.verifyAt)
	}
	have, err := m.kernel.Observe(t.Context(), nil)
	must(t, err)
	if !strings.Contains(have.String(), "route 10.244.2.0/24") {
		t.Errorf("it was not written:\n%s", have)
	}
}

// TestDriftTwice: what a reconcile writes needs no verification, so that drift right after a repair
// is repaired at once too.
func TestDriftTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, nil)
		m.join() // node2
		ctx, cancel := context.WithCancel(t.Context())
		var group errgroup.Group
		group.Go(func() error { return m.agent.watchKernel(ctx) })
		group.Go(func() error { return m.agent.reconcileLoop(ctx) })
		time.Sleep(time.Second)
		for round := range 3 {
			must(t, m.kernel.Run("ip route del 10.244.2.0/24"))
			time.Sleep(2 * minPause)
			synctest.Wait()
			have, err := m.kernel.Observe(t.Context(), nil)
			must(t, err)
			if !strings.Contains(have.String(), "route 10.244.2.0/24") {
				t.Errorf("deletion %d is not repaired after %s", round+1, 2*minPause)
			}
		}
		cancel()
		must(t, group.Wait())
	})
}

// observed is a kernel that tells when it is read.
type observed struct {
	Kernel
	tell func()
}

func (o observed) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	o.tell()
	return o.Kernel.Observe(ctx, want)
}
