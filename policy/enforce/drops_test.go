package enforce

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
)

// fakeDrops are counters of what was dropped, and of what has passed.
type fakeDrops map[netstate.Key]uint64

func (d fakeDrops) Denied() (dropped, passed map[netstate.Key]uint64, err error) {
	return d, map[netstate.Key]uint64{}, nil
}

// fakePasses are counters of what has passed.
type fakePasses map[netstate.Key]uint64

func (p fakePasses) Denied() (dropped, passed map[netstate.Key]uint64, err error) { return nil, p, nil }

// TestDropped: what a chain dropped is counted for its policies.
func TestDropped(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		drops := fakeDrops{{Kind: netstate.KindFilter, Name: "in-gone", Metric: 32}: 9}
		r.mu.Lock()
		for key, c := range r.chains {
			if c.Policies != "" {
				drops[key] = 3
			} else if c.Direction != "" && c.Family == netstate.IPv4 {
				drops[key] = 2
			}
		}
		r.mu.Unlock()
		registry := prometheus.NewRegistry()
		r.counting.from = drops
		registry.MustRegister(r.Collector())
		families, err := registry.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != (len(drops)-1)/3 {
			t.Fatalf("%v, %v: want one for each chain and its copies but the one that is gone, of %v", families, err, drops)
		}
		text := &strings.Builder{}
		for _, m := range families[0].GetMetric() {
			text.WriteString(m.String() + "\n")
		}
		for _, want := range []string{`value:"ingress"`, `value:"x/p2,x/p4"`, `value:6`, `value:9`} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the metrics lack %s:\n%s", want, text)
			}
		}
	})
}
