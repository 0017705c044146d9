package scale

import (
	"context"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// TestHerd has the stores of 20 agents follow one API server, in both places where leases can be. All know the same in
// the end, whatever happens, and what the API server's restart costs is bounded.
func TestHerd(t *testing.T) {
	controlplanetest.Binary(t, "kube-apiserver")
	controlplanetest.Binary(t, "etcd")
	const n = 20
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := NewCluster(ctx, t.TempDir(), false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := &herdTest{t: t, ctx: ctx, c: c, n: n}
	r.must(c.Join(ctx, 1, n+1))
	for _, how := range []string{subnet.StoreNodes, subnet.StoreLeases} {
		h, err := c.NewHerd(how, n)
		r.must(err)
		defer h.Close()
		r.herds = append(r.herds, h)
		h.Start()
	}
	r.await(n)
	for _, h := range r.herds {
		r.must(h.Roll(ctx, 2, Knows(1, n+1)))
	}
	r.must(c.Join(ctx, n+1, n+2))
	r.await(n + 1)
	r.restart()
	r.must(c.Leave(ctx, n+1, n+3))
	r.await(n)
}

type herdTest struct {
	t     *testing.T
	ctx   context.Context
	c     *Cluster
	n     int
	herds []*Herd
}

func (r *herdTest) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// await waits until all know n nodes, as these publish themselves, and no others.
func (r *herdTest) await(n int) {
	r.t.Helper()
	for _, h := range r.herds {
		_, err := h.Await(r.ctx, Knows(1, n+1))
		r.must(err)
	}
}

// outage is how long there is no API server, beside its start.
const outage = 3 * time.Second

// restart restarts the API server, and looks what that costs.
func (r *herdTest) restart() {
	r.must(r.c.Renew(r.ctx, 1, r.n+1)) // etcd goes on, so that no watch has its revision
	var before [][]Calls
	for _, h := range r.herds {
		before = append(before, h.Each())
	}
	began := time.Now()
	r.must(r.c.Restart(r.ctx, func() { loop.Sleep(r.ctx, outage) }))
	r.must(r.c.Join(r.ctx, r.n+2, r.n+3))
	r.await(r.n + 2)
	for i, h := range r.herds {
		for k, after := range h.Each() {
			r.check(h, k, after.Since(before[i][k]), time.Since(began))
		}
	}
}

// An API server's restart costs a store one list of each kind of objects that it follows. Until then each of its watches
// tries again after a growing while: with client-go's limit of calls alone it would be 20 times at once and five a
// second.
const mostLists = 3

func mostFailed(long time.Duration) int { return 8 + int(long.Seconds()/2) }

// check looks what the API server's restart cost member k of h.
func (r *herdTest) check(h *Herd, k int, calls Calls, long time.Duration) {
	r.t.Helper()
	limit := mostFailed(long)
	if h.how == subnet.StoreLeases {
		limit *= 3 // Lease objects, its own Node, and all Nodes, if it is a guard
	}
	lists, failed := calls[List].answered()+calls[WholeList].answered(), calls.Total().Failed
	if lists > mostLists || failed > limit {
		r.t.Errorf("the API server's restart cost the store %s of %s %d lists and %d failed requests (%+v); want %d and %d at most",
			h.how, Name(k+1), lists, failed, calls, mostLists, limit)
	}
}
