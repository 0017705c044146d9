package scale

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// storm is one hostile node among the others, which goes on while nodes join.
type storm struct {
	joins       []time.Duration // from before the creation of a Node to the kernel
	created     []time.Duration // of that, what the API server took for the creation
	writes      int
	cpu, took   time.Duration
	logged      int64
	first, next int // the nodes that joined
}

// storm lets node 1, the oldest peer, write for a while, and another node join every half second, from first
// on if that is one.
func (r *rig) storm(a *Agent, perSecond, size int, long time.Duration, first int) (s storm) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { s.writes, err = r.cluster.Hostile(ctx, 1, perSecond, size); return err })
	s.first, s.next = first, first
	began, cpu, logged := time.Now(), a.CPU(), a.LogSize()
	for time.Since(began) < long {
		r.pause(500 * time.Millisecond)
		if first == 0 {
			continue
		}
		start := time.Now()
		r.must(r.cluster.Join(r.ctx, s.next, s.next+1))
		s.created = append(s.created, time.Since(start))
		last, err := r.watch.Until(r.ctx, start, Objects(s.next)...)
		r.must(err)
		s.joins = append(s.joins, last.Sub(start))
		s.next++
	}
	s.took, s.cpu, s.logged = time.Since(began), a.CPU()-cpu, a.LogSize()-logged
	cancel()
	r.must(group.Wait())
	return s
}

// BenchmarkHostile: one node writes its own Node 25 times a second, small or with 1.2 MB; what that costs,
// and how fast others join.
func BenchmarkHostile(b *testing.B) {
	for _, size := range []int{0, 1_150_000} {
		b.Run(fmt.Sprint("bytes=", size), func(b *testing.B) {
			r := newRig(b)
			a, _ := r.start()
			r.settle(a)
			var all, created []time.Duration
			var cpu, took time.Duration
			writes, next := 0, *peers+1
			for b.Loop() {
				alone := r.storm(a, 25, size, 30*time.Second, 0)
				cpu, took, writes = cpu+alone.cpu, took+alone.took, writes+alone.writes
				s := r.storm(a, 25, size, 15*time.Second, next)
				all, created, next = append(all, s.joins...), append(created, s.created...), s.next
			}
			r.must(r.cluster.Leave(r.ctx, *peers+1, next))
			b.ReportMetric(100*cpu.Seconds()/took.Seconds(), "%-of-a-core")
			b.ReportMetric(float64(writes)/took.Seconds(), "writes/s")
			b.ReportMetric(quantile(created, 0.5).Seconds()*1e3, "p50-ms-creating")
			b.ReportMetric(quantile(created, 0.99).Seconds()*1e3, "p99-ms-creating")
			percentiles(b, all)
		})
	}
}

// TestHostile: the others join, and the agent stays ready, says little and takes less than 5 % of a core,
// while one node writes 25 times a second.
func TestHostile(t *testing.T) {
	r := newRig(t)
	a, _ := r.start()
	r.settle(a)
	s := r.storm(a, 25, 10_000, 5*time.Second, *peers+1)
	t.Logf("%d joins while there were %d writes, which cost %v; %d bytes were logged", len(s.joins), s.writes, s.cpu, s.logged)
	if len(s.joins) == 0 || s.writes == 0 {
		t.Errorf("%d joins and %d writes prove nothing", len(s.joins), s.writes)
	}
	var alone storm
	for alone.writes < 100 { // fewer prove nothing, and a busy API server takes longer for them
		more := r.storm(a, 25, 0, 5*time.Second, 0)
		alone.writes, alone.cpu, alone.took = alone.writes+more.writes, alone.cpu+more.cpu, alone.took+more.took
	}
	share := alone.cpu.Seconds() / alone.took.Seconds()
	t.Logf("%d writes took %.1f %% of a core", alone.writes, 100*share)
	if share > 0.05 {
		t.Errorf("%d writes in %v took %v", alone.writes, alone.took, alone.cpu)
	}
	if s.logged > 100_000 {
		t.Errorf("%d bytes were logged", s.logged)
	}
	if _, err := a.WaitReady(r.ctx); err != nil {
		t.Error(err)
	}
	routes, err := r.machine.Exec(r.ctx, "ip", "route", "show", "dev", "flannel.1")
	r.must(err)
	for i := 2; i <= *peers; i++ {
		if !strings.Contains(routes, Subnet(i).String()+" ") {
			t.Errorf("there is no route to %s", Name(i))
		}
	}
	r.must(r.cluster.Leave(r.ctx, s.first, s.next))
}
