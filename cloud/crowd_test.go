package cloud_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

// crowd starts many nodes at once, and returns when all have seen their routes.
func crowd(t *testing.T, m *fake.Network, nodes int, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	var all []*kept
	for i := range nodes {
		k := keep(t.Context(), m.Node(fmt.Sprintf("eni-%d", i)))
		k.views <- view(fmt.Sprintf("10.244.%d.0/24", i%256))
		if i >= 256 {
			k.views <- view(fmt.Sprintf("10.245.%d.0/24", i%256))
		}
		all = append(all, k)
	}
	for time.Since(began) < limit {
		time.Sleep(time.Second)
		seen := 0
		for _, k := range all {
			if k.Health().Seen {
				seen++
			}
		}
		if seen == nodes {
			return time.Since(began)
		}
	}
	t.Fatalf("after %s not all of %d nodes have their routes: %d do", limit, nodes, len(m.Routes()))
	return 0
}

// TestThrottled: 500 nodes that start at once against a bucket of 50 calls that is refilled by 5 a second, for the whole
// account (EC2's documented limits are 100 and 20 in most regions).
func TestThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		tokens, last := 50.0, time.Now()
		m.Break(fake.Faults{Fail: func(string) error {
			tokens, last = min(50, tokens+5*time.Since(last).Seconds()), time.Now()
			if tokens < 1 {
				return cloud.ErrThrottled
			}
			tokens--
			return nil
		}})
		took := crowd(t, m, 500, 2*time.Hour)
		calls, writes := m.Calls()
		t.Logf("500 nodes: %s, %d calls, %d writes", took, calls, writes)
		if len(m.Routes()) != 500 || writes != 500 || calls > 500*20 {
			t.Errorf("%d routes, %d writes, %d calls", len(m.Routes()), writes, calls)
		}
	})
}

// TestBusy: 200 nodes against an API that takes one change at a time, and two seconds for it.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		var free time.Time
		m.Break(fake.Faults{Fail: func(call string) error {
			switch {
			case call != "Apply":
				return nil
			case time.Now().Before(free):
				return cloud.ErrBusy
			}
			free = time.Now().Add(2 * time.Second)
			return nil
		}})
		took := crowd(t, m, 200, 2*time.Hour)
		calls, writes := m.Calls()
		t.Logf("200 nodes: %s, %d calls, %d writes", took, calls, writes)
		if len(m.Routes()) != 200 || writes != 200 || calls > 200*60 {
			t.Errorf("%d routes, %d writes, %d calls", len(m.Routes()), writes, calls)
		}
	})
}
