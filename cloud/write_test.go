package cloud_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

// TestOtherTables: a table that is full keeps no route out of another one.
func TestOtherTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, own := route("10.0.0.0/8", "x"), route("10.244.1.0/24", "eni-1")
		other.Table, own.Table = "rtb-1", "rtb-2"
		m := &fake.Network{}
		m.Break(fake.Faults{Full: 1})
		m.Set(other)
		k := keep(t.Context(), m.Node("eni-1", "rtb-1", "rtb-2"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(time.Hour)
		equal(t, m.Routes(), other, own)
		if k.Health().Seen {
			t.Error("the route that is missing in one table counts as seen")
		}
		troubled(t, k, cloud.TableFull, cloud.RouteMissing)
	})
}

// TestChecksBesideErrors: what the role may not do keeps the provider from nothing else: forwarding is looked at, and what the
// role lacks is named.
func TestChecksBesideErrors(t *testing.T) {
	for _, denied := range []string{"Apply", "List"} {
		t.Run(denied, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := network()
				m.SetForwards("eni-1", false)
				m.Break(fake.Faults{Fail: func(method string) error {
					if method == denied {
						return cloud.ErrDenied
					}
					return nil
				}})
				k := keep(t.Context(), m.Node("eni-1"))
				k.views <- view("10.244.1.0/24")
				time.Sleep(10 * time.Minute)
				troubled(t, k, cloud.ForwardingOff, cloud.Denied, cloud.RouteMissing)
			})
		})
	}
}

// moving is a node whose network interface is another one when its address is.
type moving struct{ cloud.Cloud }

func (m moving) Self(_ context.Context, local []netip.Addr) (cloud.Self, error) {
	return cloud.Self{Target: "eni-" + local[0].String()}, nil
}

// TestMoves: another network interface gets the route, and is asked at once whether it forwards.
func TestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := network()
		m.AddNIC(fake.NIC{ID: "eni-192.0.2.1", Forwards: true})
		m.AddNIC(fake.NIC{ID: "eni-192.0.2.9"})
		k := keep(t.Context(), moving{m.Node("eni-1")})
		k.views <- view("10.244.1.0/24")
		time.Sleep(5 * time.Minute)
		troubled(t, k)
		moved := view("10.244.1.0/24")
		moved.Local = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		k.views <- moved
		time.Sleep(time.Minute)
		equal(t, m.Routes(), route("10.244.1.0/24", "eni-192.0.2.9"))
		troubled(t, k, cloud.ForwardingOff)
	})
}

// TestUnconfirmed: the lease of an earlier run may be another node's by now. Until the store has answered, no route that works
// is taken or deleted for it, and a dead or missing one is made.
func TestUnconfirmed(t *testing.T) {
	own, theirs := route("10.244.1.0/24", "eni-1"), route("10.244.1.0/24", "eni-9")
	dead, earlier := theirs, route("10.244.7.0/24", "eni-1")
	dead.State = cloud.Blackhole
	for name, test := range map[string]struct{ before, until, after []cloud.Route }{
		"another's":        {[]cloud.Route{theirs}, []cloud.Route{theirs}, []cloud.Route{own}},
		"an earlier lease": {[]cloud.Route{own, earlier}, []cloud.Route{own, earlier}, []cloud.Route{own}},
		"dead":             {[]cloud.Route{dead}, []cloud.Route{own}, []cloud.Route{own}},
		"missing":          {nil, []cloud.Route{own}, []cloud.Route{own}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &fake.Network{}
				m.Set(test.before...)
				k := keep(t.Context(), m.Node("eni-1"))
				unconfirmed := view("10.244.1.0/24")
				unconfirmed.Synced = false
				k.views <- unconfirmed
				time.Sleep(20 * time.Minute)
				equal(t, m.Routes(), test.until...)
				if h := k.Health(); name == "another's" && (h.Seen || h.Wrong.IsZero()) {
					t.Errorf("health %+v", h)
				}
				k.views <- view("10.244.1.0/24")
				time.Sleep(time.Second)
				equal(t, m.Routes(), test.after...)
			})
		})
	}
}

// TestLeaseAway: a lease that is gone for a while, as one whose record somebody deleted, keeps its route: pods still use it.
func TestLeaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fake.Network{}
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(5 * time.Minute)
		away := view("10.244.1.0/24", "10.244.2.0/24")
		away.Snapshot.Local.Stacks = nil
		k.views <- away
		time.Sleep(time.Hour)
		equal(t, m.Routes(), route("10.244.1.0/24", "eni-1"))
		k.views <- view("10.244.3.0/24")
		time.Sleep(time.Minute)
		equal(t, m.Routes(), route("10.244.3.0/24", "eni-1"))
		m.Set()
		time.Sleep(16 * time.Minute)
		equal(t, m.Routes(), route("10.244.3.0/24", "eni-1"))
	})
}

// TestPending: a route that is still being made is not there yet, and is looked for again soon.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pending := route("10.244.1.0/24", "eni-1")
		pending.State = cloud.Pending
		m := &fake.Network{}
		m.Set(pending)
		k := keep(t.Context(), m.Node("eni-1"))
		k.views <- view("10.244.1.0/24")
		time.Sleep(5 * time.Minute)
		if _, writes := m.Calls(); k.Health().Seen || writes != 0 {
			t.Errorf("%d writes, health %+v", writes, k.Health())
		}
		troubled(t, k, cloud.RouteMissing)
		m.Set(route("10.244.1.0/24", "eni-1"))
		time.Sleep(time.Minute)
		if !slices.Equal(k.Health().Troubles, nil) || !k.Health().Seen {
			t.Errorf("when it is made: %+v", k.Health())
		}
	})
}
