package agent

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// refusing is a store that notes when it is asked for a lease, and may refuse it.
type refusing struct {
	subnet.Store
	mu      sync.Mutex
	refuses bool
	asked   []time.Time
	lasts   int
}

func (r *refusing) Last(ctx context.Context, want subnet.Lease) (subnet.Lease, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lasts++
	return r.Store.Last(ctx, want)
}

func (r *refusing) Acquire(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, time.Now())
	if r.refuses {
		return subnet.Lease{}, errors.New("no leader")
	}
	return r.Store.Acquire(ctx, want)
}

// set makes the store refuse or not, and returns when it was asked since the last time.
func (r *refusing) set(refuses bool) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked
	r.refuses, r.asked = refuses, nil
	return asked
}

// TestPublishBacksOff: a lease that cannot be published is tried again less and less often, and
// after it was published the next one begins with short pauses again.
func TestPublishBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNode(t), &refusing{}
		n.tune = func(c *Config) { store.Store, c.Store = c.Store, store }
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		before := "192.168.33.101/24"
		for _, addr := range []string{"192.168.33.111/24", "192.168.33.112/24"} {
			store.set(true)
			n.must(n.kernel.Run("ip addr del " + before + " dev eth1"))
			before = addr
			n.must(n.kernel.Run("ip addr add " + addr + " dev eth1"))
			time.Sleep(4 * time.Second)
			asked := store.set(false)
			var pauses []time.Duration
			for i, at := range asked[1:] {
				pauses = append(pauses, at.Sub(asked[i]).Truncate(100*time.Millisecond))
			}
			if want := []time.Duration{1e8, 2e8, 4e8, 8e8, 16e8}; !slices.Equal(pauses, want) {
				t.Errorf("with %s it pauses for %v, want %v", addr, pauses, want)
			}
			time.Sleep(lastRetry)
			if asked := store.set(false); len(asked) != 1 {
				t.Errorf("with %s the store was asked %d times when it answered, want once", addr, len(asked))
			}
		}
	})
}

// TestStopWithoutAnUnderlay: an agent that has not found an underlay asks the store for nothing when it ends.
func TestStopWithoutAnUnderlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, store := newNode(t), &refusing{}
		n.tune = func(c *Config) { store.Store, c.Store, c.Choice.Names = c.Store, store, []string{"eth9"} }
		stop := n.start()
		time.Sleep(time.Minute)
		stop()
		if store.lasts > 0 || len(store.asked) > 0 {
			t.Errorf("the store was asked %d times for the last lease and %d times for a new one", store.lasts, len(store.asked))
		}
	})
}

// TestFreeOSMemory: what a start needs beyond what the agent keeps is returned to the system after
// the pause that follows the first checkpoint, once.
func TestFreeOSMemory(t *testing.T) {
	m := newModel(t, nil)
	forced := func() uint32 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.NumForcedGC
	}
	before := forced()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // without the pauses between checkpoints
	go func() {
		defer close(m.agent.saves)
		for range 3 {
			m.agent.saves <- subnet.Snapshot{}
		}
	}()
	if err := m.agent.writeCheckpoints(ctx); err != nil {
		t.Fatal(err)
	}
	if got := forced() - before; got != 1 {
		t.Errorf("%d forced collections, want 1", got)
	}
}

// TestSaysKeptSubnet: a lease that the network config would not give any more is kept, and that is said once.
func TestSaysKeptSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tune = func(c *Config) {
			c.Network.Pools[0].SubnetLen = 26
			c.Store = file.New(n.leases(), c.Network.Pools)
		}
		n.addPeer("node1", "10.244.9.0/24", "192.168.33.101", "0a:00:00:00:00:01")
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		time.Sleep(2 * resync)
		const line = `subnet=10.244.9.0/24 pool="10.244.0.0/16: a /26 from 10.244.0.0 to 10.244.255.0"`
		if log := n.log.String(); strings.Count(log, "the node keeps its subnet") != 1 || !strings.Contains(log, line) {
			t.Errorf("want one line with %s in\n%s", line, log)
		}
	})
}
