package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// What the fast path's programs did.
var (
	fastPathPackets = prometheus.NewDesc("twill_fastpath_packets_total",
		"Packets that the fast path's programs saw, by program and result: encap, vtep or direct for those that took the fast "+
			"path, else why they were left to the kernel. A packet of many segments counts once.",
		[]string{"program", "result"}, nil)
	fastPathFailures = prometheus.NewDesc("twill_fastpath_failures_total",
		"Calls of the fast path's programs that the kernel refused where it should not; the packet was left to the kernel or lost.",
		nil, nil)
)

// fastPathCounts reads the programs' counters whenever somebody asks for metrics.
type fastPathCounts struct {
	counts func() (fastpath.Counts, error)
}

// registerFastPath registers the counters. Without programs those of packets that took the fast path are 0.
func registerFastPath(registry prometheus.Registerer, f agent.FastPath) {
	counts := noPackets
	if p, ok := f.(*fastpath.Provider); ok {
		counts = p.Counts
	}
	registry.MustRegister(fastPathCounts{counts})
}

// noPackets is what there is to count without programs.
func noPackets() (c fastpath.Counts, _ error) {
	for _, program := range []netstate.ProgramName{netstate.FromPod, netstate.ToPod} {
		for _, mode := range []netstate.ShortcutMode{netstate.Encapsulate, netstate.ThroughVTEP, netstate.NextHop} {
			c.Results = append(c.Results, fastpath.Count{Program: program, Result: string(mode), Fast: true})
		}
	}
	return c, nil
}

// Describe implements prometheus.Collector.
func (fastPathCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- fastPathPackets
	ch <- fastPathFailures
}

// Collect implements prometheus.Collector.
func (f fastPathCounts) Collect(ch chan<- prometheus.Metric) {
	counts, err := f.counts()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(fastPathPackets, err)
		return
	}
	for _, c := range counts.Results {
		ch <- prometheus.MustNewConstMetric(fastPathPackets, prometheus.CounterValue, float64(c.Packets), string(c.Program), c.Result)
	}
	ch <- prometheus.MustNewConstMetric(fastPathFailures, prometheus.CounterValue, float64(counts.Failures))
}
