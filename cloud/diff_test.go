package cloud_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

// named returns a route with a name, as a provider lists it.
func named(name, dst, target string, state cloud.State) cloud.Route {
	r := route(dst, target)
	r.Name, r.State = name, state
	return r
}

// TestDiffDoubles: a table may have several routes to one prefix, over which packets are spread. Then one that is right makes
// none of the others right.
func TestDiffDoubles(t *testing.T) {
	own := named("a", "10.244.1.0/24", "eni-1", cloud.Active)
	twin := named("b", "10.244.1.0/24", "eni-1", cloud.Active)
	theirs := named("c", "10.244.1.0/24", "eni-7", cloud.Active)
	gone := named("d", "10.244.1.0/24", "eni-9", cloud.Blackhole)
	ownDead := named("e", "10.244.1.0/24", "eni-1", cloud.Blackhole)
	peers := []cloud.Route{named("f", "10.244.2.0/24", "eni-2", cloud.Active), named("g", "10.244.2.0/24", "eni-3", cloud.Active)}
	earlier := []cloud.Route{named("h", "10.244.9.0/24", "eni-1", cloud.Active), named("i", "10.244.9.0/24", "eni-1", cloud.Active)}
	replaced := route("10.244.1.0/24", "eni-1")
	replaced.Name = "c"
	for name, test := range map[string]struct {
		have []cloud.Route
		want []cloud.Change
	}{
		"one right":                  {[]cloud.Route{own}, nil},
		"two right":                  {[]cloud.Route{own, twin}, nil},
		"a peer's two":               {append(peers, own), nil},
		"right, then another's":      {[]cloud.Route{own, theirs}, []cloud.Change{{Op: cloud.Delete, Route: theirs}}},
		"another's, then right":      {[]cloud.Route{theirs, own}, []cloud.Change{{Op: cloud.Delete, Route: theirs}}},
		"right, dead":                {[]cloud.Route{own, gone}, []cloud.Change{{Op: cloud.Delete, Route: gone}}},
		"right, dead with my target": {[]cloud.Route{ownDead, own}, []cloud.Change{{Op: cloud.Delete, Route: ownDead}}},
		"two wrong": {[]cloud.Route{theirs, gone}, []cloud.Change{
			{Op: cloud.Replace, Route: replaced, Old: theirs}, {Op: cloud.Delete, Route: gone}}},
		"an earlier lease's two": {append(earlier, own), []cloud.Change{{Op: cloud.Delete, Route: earlier[0]}, {Op: cloud.Delete, Route: earlier[1]}}},
	} {
		got := cloud.Diff([]cloud.Route{route("10.244.1.0/24", "eni-1")}, test.have, cloud.Self{Target: "eni-1"}, pools)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestDoubles: a second route to a node's subnet goes, and the node's routes are wrong until then. One that somebody makes again
// and again is left after three times.
func TestDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, theirs := route("10.244.1.0/24", "eni-1"), route("10.244.1.0/24", "eni-9")
		m := &fake.Network{}
		m.Set(theirs, own)
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(3 * time.Minute)
		equal(t, m.Routes(), own)
		if h := k.Health(); !h.Seen || !h.Wrong.IsZero() {
			t.Errorf("when it is gone: %+v", h)
		}
		disputed(t, k, func() { m.Set(own, theirs) })
		if _, writes := m.Calls(); writes > 1+3*7 {
			t.Errorf("%d writes in an hour", writes)
		}
	})
}

// TestNoDispute: a change that fails is no dispute: when the API works again, the route is put right at once.
func TestNoDispute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		m := &fake.Network{}
		m.Break(fake.Faults{Fail: func(method string) error {
			if method == "Apply" && broken.Load() {
				return cloud.ErrBusy
			}
			return nil
		}})
		m.Set(route("10.244.1.0/24", "eni-9"))
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(time.Minute)
		synctest.Wait()
		broken.Store(false)
		time.Sleep(2 * time.Minute)
		equal(t, m.Routes(), route("10.244.1.0/24", "eni-1"))
	})
}
