//go:build scale

package scale

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

var (
	herdSize = flag.Int("herd", 1000, "of the herds' table: nodes, each with the store of an agent")
	herds    = flag.String("herds", "nodes,leases,client-go", "of the herds' table: what follows leases")
)

// herdRun is one herd, and what was counted before an event.
type herdRun struct {
	herdTest
	herd   *Herd
	began  time.Time
	server time.Duration // processor time of the API server
	own    time.Duration // and of this process, which has the stores
	calls  Calls
}

// TestHerdTable prints what events of a cluster cost the API server and the stores of all its agents: N watches of N nodes.
func TestHerdTable(t *testing.T) {
	controlplanetest.Binary(t, "kube-apiserver")
	controlplanetest.Binary(t, "etcd")
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	c, err := NewCluster(ctx, t.TempDir(), false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := *herdSize
	if err := c.Join(ctx, 1, n+1); err != nil {
		t.Fatal(err)
	}
	fmt.Println("| stores | event | s until all know | p50 ms | API server, CPU s | stores, CPU s | MB sent | lists | refused | failed |\n|---|---|---|---|---|---|---|---|---|---|")
	for how := range strings.SplitSeq(*herds, ",") {
		h, err := c.NewHerd(map[string]string{"nodes": subnet.StoreNodes, "leases": subnet.StoreLeases, "client-go": ClientGo}[how], n)
		if err != nil {
			t.Fatal(err)
		}
		r := &herdRun{herdTest: herdTest{t: t, ctx: ctx, c: c, n: n}, herd: h}
		r.events(how)
		h.Close()
	}
}

// events has all events happen to a herd.
func (r *herdRun) events(how string) {
	n := r.n
	r.begin()
	r.herd.Start()
	r.end(how, "all start at once", knowsMany(n))
	r.begin()
	r.must(r.c.Join(r.ctx, n+1, n+2))
	r.end(how, "a node joins", Sees(n+1, true))
	r.begin()
	r.must(r.c.Heartbeat(r.ctx, 1, 101))
	loop.Sleep(r.ctx, 3*time.Second) // nobody can see the last one
	r.end(how, "100 heartbeats", Sees(n+1, true))
	r.begin()
	r.must(r.c.Leave(r.ctx, n+1, n+2))
	r.end(how, "a node leaves", Sees(n+1, false))
	r.begin()
	r.must(r.herd.Roll(r.ctx, max(1, n/10), knowsMany(n)))
	r.end(how, "a rolling restart, a tenth at a time", knowsMany(n))
	r.begin()
	r.must(r.c.Restart(r.ctx, func() { loop.Sleep(r.ctx, outage) }))
	r.must(r.c.Join(r.ctx, n+2, n+3))
	r.end(how, fmt.Sprintf("the API server is away for %v, and a node joins", outage), Sees(n+2, true))
	r.must(r.c.Leave(r.ctx, n+2, n+3))
	_, err := r.herd.Await(r.ctx, Sees(n+2, false))
	r.must(err)
}

// knowsMany is the goal to know all but the own one of n nodes, by number.
func knowsMany(n int) Goal {
	return func(_ int, s subnet.Snapshot) bool { return len(s.Peers) == n-1 }
}

func (r *herdRun) begin() {
	r.began, r.server, r.own, r.calls = time.Now(), r.c.CPU(), ownCPU(r.t), r.herd.Calls()
}

// end waits until all know what happened, and prints what it cost.
func (r *herdRun) end(how, what string, goal Goal) {
	r.t.Helper()
	server := r.server
	stop := r.report(how + ", " + what)
	when, err := r.herd.Await(r.ctx, goal)
	stop()
	r.must(err)
	took := time.Since(r.began)
	var late []time.Duration
	for _, at := range when {
		late = append(late, at.Sub(r.began))
	}
	loop.Sleep(r.ctx, time.Second) // what it costs to send goes on for a moment
	if r.c.CPU() < server {
		server = 0 // another process
	}
	calls := r.herd.Calls().Since(r.calls)
	total := calls.Total()
	fmt.Printf("| %s | %s | %.2f | %d | %.1f | %.1f | %.1f | %d | %d | %d |\n", how, what, took.Seconds(), quantile(late, 0.5).Milliseconds(),
		(r.c.CPU() - server).Seconds(), (ownCPU(r.t) - r.own).Seconds(), float64(total.Bytes)/1e6, calls[List].Sent+calls[WholeList].Sent, total.Refused, total.Failed)
}

// report says every ten seconds how far the herd is, until it is stopped.
func (r *herdRun) report(what string) (stop func()) {
	ctx, stop := context.WithCancel(r.ctx)
	go func() {
		for loop.Sleep(ctx, 10*time.Second) {
			fmt.Fprintf(os.Stderr, "%s, %.0f s: %s\n", what, time.Since(r.began).Seconds(), r.herd.Progress())
		}
	}()
	return stop
}

// ownCPU is the processor time of this process.
func ownCPU(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
