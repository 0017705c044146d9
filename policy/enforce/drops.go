package enforce

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// dropped and audited are the metrics of what was denied, and why.
var (
	dropped = deniedDesc("twill_policy_dropped_packets_total", "Packets that network policies dropped on this node")
	audited = deniedDesc("twill_policy_audited_packets_total",
		"Packets that network policies would have dropped on this node, and that have passed because they are only audited")
)

func deniedDesc(name, what string) *prometheus.Desc {
	return prometheus.NewDesc(name, what+", by direction and the policies that isolate the pod; without "+
		"policies: of addresses that are no known pod's; of family Ethernet: frames with other sources than their pod's "+
		"own, or that hold no plain packet. It begins anew when a policy changes.",
		[]string{"family", "direction", "policies"}, nil)
}

// Counters are the kernel's: packets by the key of the Filter or Hook that denied them, which has dropped them or let them pass.
type Counters interface {
	Denied() (dropped, passed map[netstate.Key]uint64, err error)
}

// counting are Counters that several read at once.
type counting struct {
	sync.Mutex
	from Counters
}

// counted returns how many packets were dropped, and how many have passed although they were denied.
func (e *Enforcer) counted() (dropped, passed map[policy.Chain]uint64, err error) {
	e.counting.Lock()
	drops, passes, err := e.counting.from.Denied()
	e.counting.Unlock()
	if err != nil {
		e.causes.Error(e.Log, "read the counters of network policies", err)
		return nil, nil, err
	}
	e.mu.Lock()
	chains := e.chains
	e.mu.Unlock()
	sum := func(counts map[netstate.Key]uint64) map[policy.Chain]uint64 {
		sums := map[policy.Chain]uint64{}
		for key, n := range counts {
			if chain := chains[key]; chain.Family != 0 { // else it was made since
				sums[chain] += n
			}
		}
		return sums
	}
	return sum(drops), sum(passes), nil
}

// mostAudited bounds what Audited returns.
const mostAudited = 100

// Audited returns whether policies are only audited, and what they would have denied, most packets first: a hundred at most.
func (e *Enforcer) Audited() (audits bool, denied []netstate.Denied) {
	if !e.Audit {
		return false, nil
	}
	_, passed, err := e.counted()
	if err != nil {
		return true, nil
	}
	for chain, n := range passed {
		denied = append(denied, netstate.Denied{Family: chain.Family.String(), Direction: strings.ToLower(string(chain.Direction)),
			Policies: chain.Policies, Packets: n})
	}
	slices.SortFunc(denied, func(a, b netstate.Denied) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Policies, b.Policies), cmp.Compare(a.Direction, b.Direction),
			cmp.Compare(a.Family, b.Family))
	})
	return true, denied[:min(len(denied), mostAudited)]
}

// Collector returns what reads the counters whenever somebody asks for metrics.
func (e *Enforcer) Collector() prometheus.Collector { return collector{e} }

type collector struct{ *Enforcer }

func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- dropped; ch <- audited }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	drops, passes, err := c.counted()
	if err != nil {
		return
	}
	for desc, sums := range map[*prometheus.Desc]map[policy.Chain]uint64{dropped: drops, audited: passes} {
		for chain, n := range sums {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), chain.Family.String(),
				strings.ToLower(string(chain.Direction)), chain.Policies)
		}
	}
}
