//go:build scale

package scale

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	sizes  = flag.String("sizes", "1000,5000,10000", "of the table: numbers of peers, ascending")
	rows   = flag.String("rows", "flannel,nodes,leases,leases-spread", "of the table: agents and settings")
	rounds = flag.Int("rounds", 3, "of the table: starts, of which the median counts")
)

func init() { bothStores = true }

// variants are what -rows may name.
var variants = map[string]Setting{
	"flannel":       {},
	"nodes":         {},
	"nodes-spread":  {SpreadMetrics: true},
	"leases":        {Store: "leases"},
	"leases-spread": {Store: "leases", SpreadMetrics: true},
}

// TestTable prints what the nodes of a cluster cost one agent.
func TestTable(t *testing.T) {
	flanneld, err := filepath.Abs("../../bin/flannel/flanneld")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(tableHead)
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < *peers && shared.nodes > 0 || n < samples {
			t.Fatalf("-sizes %s: want ascending numbers of at least %d peers", *sizes, samples)
		}
		*peers = n
		for name := range strings.SplitSeq(*rows, ",") {
			setting, ok := variants[name]
			if !ok {
				t.Fatalf("-rows %s: want flannel, nodes, nodes-spread, leases or leases-spread", *rows)
			}
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				r := newRig(t)
				r.must(r.machine.Configure(setting))
				agent := *agentPath
				if name == "flannel" {
					agent = flanneld
				}
				fmt.Printf("| %d | %s %s\n", n, name, r.row(agent))
			})
		}
	}
}

const tableHead = `| peers | | heartbeat, B | heartbeat, cpu µs | join p50, ms | join p99, ms | cold start, s | × floor | cold start, cpu s | × floor's | received, MB | memory, MB | resident, MB | idle, wake-ups/s | idle, switches/s | idle, cpu % |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// row measures an agent, and returns its figures in the order of tableHead.
func (r *rig) row(agent string) string {
	r.b.Helper()
	a, cells := r.coldStarts(agent)
	idle := r.idle(a, 20*time.Second)
	beats := r.heartbeats(a)
	r.settle(a)
	_, joins := r.joins(samples)
	return fmt.Sprintf("%s| %.0f | %.0f %s%s|", beats, quantile(joins, 0.5).Seconds()*1e3, quantile(joins, 0.99).Seconds()*1e3,
		cells, idle)
}

// coldStarts starts the agent some times, each on a kernel without its objects, and leaves the last one running.
func (r *rig) coldStarts(agent string) (a *Agent, cells string) {
	r.b.Helper()
	var took, ratio, cpu, cpuRatio, received []float64
	for i := range *rounds {
		if i > 0 {
			r.must(a.Close())
			r.must(r.machine.Reset(r.ctx))
		}
		floor, err := r.machine.Floor(r.ctx, *peers+1)
		r.must(err)
		before := r.machine.Received()
		var t time.Duration
		a, t = r.startAgent(agent)
		spent := a.CPU().Seconds()
		took, ratio = append(took, t.Seconds()), append(ratio, t.Seconds()/floor.Took.Seconds())
		cpu, cpuRatio = append(cpu, spent), append(cpuRatio, spent/floor.CPU.Seconds())
		r.settle(a)
		received = append(received, float64(r.machine.Received()-before)/mega)
	}
	r.pause(3 * time.Second) // the agent returns memory when it rests
	memory, err := a.Memory()
	r.must(err)
	median := func(s []float64) float64 { slices.Sort(s); return s[len(s)/2] }
	return a, fmt.Sprintf("| %.2f | %.1f | %.2f | %.1f | %.1f | %.0f | %.0f ", median(took), median(ratio), median(cpu),
		median(cpuRatio), median(received), float64(memory.Private)/mega, float64(memory.RSS)/mega)
}

// idle is what an agent does while nothing happens.
func (r *rig) idle(a *Agent, long time.Duration) string {
	r.b.Helper()
	woken, began, cpu := a.CountWakeups(), time.Now(), a.CPU()
	r.pause(long)
	share := 100 * (a.CPU() - cpu).Seconds() / time.Since(began).Seconds()
	rate, err := woken.Rate()
	r.must(err)
	return fmt.Sprintf("| %.1f | %.1f | %.2f ", rate.Wakeups, rate.Switches, share)
}

// heartbeats is what one heartbeat of a peer costs.
func (r *rig) heartbeats(a *Agent) string {
	r.b.Helper()
	n := min(500, *peers)
	r.must(r.cluster.Heartbeat(r.ctx, 1, n+1)) // the first one grows the object
	r.settle(a)
	cpu, received := a.CPU(), r.machine.Received()
	r.must(r.cluster.Heartbeat(r.ctx, 1, n+1))
	r.pause(500 * time.Millisecond)
	return fmt.Sprintf("| %.0f | %.0f ", float64(r.machine.Received()-received)/float64(n),
		(a.CPU()-cpu).Seconds()*1e6/float64(n))
}
