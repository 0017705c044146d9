package pods

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestUsage: the metrics count the addresses of the lease that are in use, whatever network reserved them, and the last one
// is an event, once.
func TestUsage(t *testing.T) {
	n := newNode(t)
	r, events := n.reclaimer(time.Hour), 0
	r.Lease = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.244.1.1/29")} }
	registry := prometheus.NewRegistry()
	r.Metrics = NewMetrics(registry)
	value := func(name string) float64 {
		t.Helper()
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() == name {
				return m.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	r.Event = func(_, reason, _ string) {
		if reason == "AddressesExhausted" {
			events++
		}
	}
	check := func(used float64, wantEvents int) {
		t.Helper()
		for range 2 {
			n.run(func() error { return r.Check(t.Context()) })
		}
		if got := value("twill_pod_addresses_used"); got != used {
			t.Errorf("%g addresses are in use, want %g", got, used)
		}
		if got := value("twill_pod_addresses"); got != 5 {
			t.Errorf("there are %g addresses, want 5", got)
		}
		if events != wantEvents {
			t.Errorf("%d events, want %d", events, wantEvents)
		}
	}
	check(0, 0)
	for i := range 4 {
		n.reserve(fmt.Sprint("pod", i), fmt.Sprintf("10.244.1.%d", 2+i))
	}
	n.reserve("elsewhere", "10.244.9.9")
	check(4, 0)
	n.reserveIn("other", "last", "10.244.1.6")
	check(5, 1)
}
