package enforce

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// dropped is the metric of what was dropped, and why.
var dropped = prometheus.NewDesc("twill_policy_dropped_packets_total",
	"Packets that network policies dropped on this node, by direction and the policies that isolate the pod; without "+
		"policies: of addresses that are no known pod's; of family Ethernet: frames with other sources than their pod's "+
		"own, or that hold no plain packet. It begins anew when a policy changes.",
	[]string{"family", "direction", "policies"}, nil)

// Drops are the kernel's counters: packets by the key of the Filter or Hook that dropped them.
type Drops interface {
	Dropped() (map[netstate.Key]uint64, error)
}

// Collector returns what reads the counters whenever somebody asks for metrics.
func (e *Enforcer) Collector(drops Drops) prometheus.Collector {
	return &collector{enforcer: e, drops: drops}
}

type collector struct {
	enforcer *Enforcer
	mu       sync.Mutex // of two that ask at once
	drops    Drops
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- dropped }

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	counts, err := c.drops.Dropped()
	c.mu.Unlock()
	if err != nil {
		c.enforcer.causes.Error(c.enforcer.Log, "read the counters of network policies", err)
		return
	}
	c.enforcer.mu.Lock()
	chains := c.enforcer.chains
	c.enforcer.mu.Unlock()
	sums := map[policy.Chain]uint64{}
	for key, n := range counts {
		sums[chains[key]] += n
	}
	for chain, n := range sums {
		if chain.Family == 0 {
			continue // it was made since
		}
		ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n), chain.Family.String(),
			strings.ToLower(string(chain.Direction)), chain.Policies)
	}
}
