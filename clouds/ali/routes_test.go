package ali_test

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/ali"
	"github.com/twill-net/twill/subnet"
)

func pool(network string) []subnet.Pool {
	return []subnet.Pool{{Network: netip.MustParsePrefix(network), SubnetLen: 24}}
}

// list returns what a node lists of the pods' network.
func list(t *testing.T, api cloud.Cloud) (routes []cloud.Route) {
	t.Helper()
	all, err := api.List(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(r cloud.Route) bool { return !netip.MustParsePrefix("10.244.0.0/14").Contains(r.Dst.Addr()) })
}

// TestAdopts: a route that flannel made is the node's own, and nothing is written.
func TestAdopts(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	l.network.Set(route("10.244.1.0/24", "i-1")) // flannel gave no description
	s, err := l.node(t, 0, withKey).Self(t.Context(), l.local[0])
	if err != nil {
		t.Fatal(err)
	}
	if changes := cloud.Diff([]cloud.Route{route("10.244.1.0/24", s.Target)}, list(t, l.node(t, 0, withKey)), s, pool("10.244.0.0/16")); len(changes) > 0 {
		t.Errorf("it would write %v", changes)
	}
}

// TestOthers: routes by something that is no instance are listed, with a target that is no node's.
func TestOthers(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	dead := route("10.244.4.0/24", "i-9")
	dead.State = cloud.Blackhole
	pending := route("10.244.5.0/24", "i-1")
	pending.State = cloud.Pending
	want := []cloud.Route{route("10.244.1.0/24", "eni-1"), route("10.244.2.0/24", "ngw-1"), route("10.244.3.0/24", "i-1,i-2"), dead, pending}
	l.network.Set(want...)
	got := list(t, l.node(t, 0, withKey))
	for i := range got {
		got[i].Name = ""
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDeleteIsSafe: only the route that was meant is deleted.
func TestDeleteIsSafe(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	api := l.node(t, 0, withKey)
	l.network.Set(route("10.244.1.0/24", "i-2"))
	err := api.Apply(t.Context(), self, cloud.Change{Op: cloud.Delete, Route: route("10.244.1.0/24", "i-1")})
	if !errors.Is(err, cloud.ErrGone) || len(l.network.Routes()) != 1 {
		t.Errorf("delete it by another target: %v, left %v", err, l.network.Routes())
	}
	change := cloud.Change{Op: cloud.Replace, Route: route("10.244.1.0/24", "i-1"), Old: route("10.244.1.0/24", "i-3")}
	if err := api.Apply(t.Context(), self, change); !errors.Is(err, cloud.ErrExists) || l.network.Routes()[0].Target != "i-2" {
		t.Errorf("replace one that is not there: %v, left %v", err, l.network.Routes())
	}
	several := route("10.244.7.0/24", "i-1,i-2")
	l.network.Set(several)
	if err := api.Apply(t.Context(), self, cloud.Change{Op: cloud.Delete, Route: several}); err != nil || len(l.network.Routes()) != 0 {
		t.Errorf("delete one with several next hops: %v, left %v", err, l.network.Routes())
	}
}

// TestSlow: while a change goes on, no other one is possible, and a route that is being made cannot be deleted.
func TestSlow(t *testing.T) {
	var slow atomic.Bool
	slow.Store(true)
	l := newLab(t, fake.AliOptions{Slow: &slow})
	api := l.node(t, 0, withKey)
	one, two := route("10.244.1.0/24", "i-1"), route("10.244.2.0/24", "i-1")
	if err := api.Apply(t.Context(), self, cloud.Change{Op: cloud.Create, Route: one}); err != nil {
		t.Fatal(err)
	}
	if got := list(t, api); len(got) != 1 || got[0].State != cloud.Pending {
		t.Errorf("listed %v, want a pending one", got)
	}
	for _, c := range []cloud.Change{{Op: cloud.Create, Route: two}, {Op: cloud.Delete, Route: one}, {Op: cloud.Replace, Route: one, Old: one}} {
		if err := api.Apply(t.Context(), self, c); !errors.Is(err, cloud.ErrBusy) {
			t.Errorf("%s: %v, want %v", c, err, cloud.ErrBusy)
		}
	}
	slow.Store(false)
	if err := api.Apply(t.Context(), self, cloud.Change{Op: cloud.Delete, Route: one}); err != nil {
		t.Errorf("later: %v", err)
	}
}

// TestLag: a route is made anew when the deleted one is not listed any more.
func TestLag(t *testing.T) {
	var l lab
	var mu sync.Mutex
	var asked []string // since the route was deleted
	l = newLab(t, fake.AliOptions{Judge: func(action string, _ url.Values) {
		mu.Lock()
		defer mu.Unlock()
		if len(asked) > 0 || action == "DeleteRouteEntry" {
			asked = append(asked, action)
		}
		if len(asked) == 3 {
			l.network.Break(fake.Faults{})
		}
	}})
	old, one := route("10.244.1.0/24", "i-2"), route("10.244.1.0/24", "i-1")
	l.network.Set(old)
	l.network.Break(fake.Faults{Lag: time.Hour})
	if err := l.node(t, 0, withKey).Apply(t.Context(), self, cloud.Change{Op: cloud.Replace, Route: one, Old: old}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	list := "DescribeRouteEntryList"
	if want := []string{"DeleteRouteEntry", list, list, "CreateRouteEntry"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if got := l.network.Routes(); len(got) != 1 || got[0].Target != "i-1" {
		t.Errorf("the routes are %v", got)
	}
}

// TestRefused: destinations that the cloud refuses, and IPv6.
func TestRefused(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	api := l.node(t, 0, withKey)
	for _, dst := range []string{"192.168.1.128/25", "100.64.1.0/24", "fd00::/64"} {
		err := api.Apply(t.Context(), self, cloud.Change{Op: cloud.Create, Route: route(dst, "i-1")})
		plain(t, dst, err)
		if len(l.network.Routes()) > 0 {
			t.Errorf("%s: a route was made", dst)
		}
	}
	if _, err := ali.New(cloud.Options{Pools: pool("fd00::/48")}); err == nil || !strings.Contains(err.Error(), "IPv4 only") {
		t.Errorf("a network of IPv6: %v", err)
	}
}

// TestPermissions: a node that starts and heals uses all of the documented permissions, and no other.
func TestPermissions(t *testing.T) {
	used := map[string]bool{}
	product := map[string]string{"2016-04-28": "vpc:", "2014-05-26": "ecs:"}
	l := newLab(t, fake.AliOptions{Judge: func(action string, p url.Values) { used[product[p.Get("Version")]+action] = true }})
	api := l.node(t, 0, withKey)
	if _, err := api.Self(t.Context(), l.local[0]); err != nil {
		t.Fatal(err)
	}
	for method, err := range methods(t.Context(), api) {
		if err != nil && !errors.Is(err, cloud.ErrGone) && !errors.Is(err, cloud.ErrExists) && !errors.Is(err, cloud.ErrBusy) {
			t.Errorf("%s: %v", method, err)
		}
	}
	for _, p := range ali.Permissions {
		if !used[p] {
			t.Errorf("%s is documented and not used", p)
		}
		delete(used, p)
	}
	if len(used) > 0 {
		t.Errorf("used and not documented: %v", used)
	}
}

// TestDenied: each missing permission is named, with what gives it.
func TestDenied(t *testing.T) {
	for _, permission := range ali.Permissions {
		t.Run(permission, func(t *testing.T) {
			l := newLab(t, fake.AliOptions{Role: "twill"})
			l.network.Break(fake.Faults{Denied: []string{permission}})
			api := l.node(t, 0, cloud.Options{})
			_, action, _ := strings.Cut(permission, ":")
			var said []string
			if _, err := api.Self(t.Context(), l.local[0]); errors.Is(err, cloud.ErrDenied) {
				said = append(said, err.Error())
			}
			for _, err := range methods(t.Context(), api) {
				if errors.Is(err, cloud.ErrDenied) {
					plain(t, permission, err)
					said = append(said, err.Error())
				}
			}
			troubles, err := api.Check(t.Context(), self)
			if err != nil {
				t.Errorf("Check: %v", err)
			}
			for _, trouble := range troubles {
				if trouble.ID == cloud.Denied && (trouble.Object != permission || !strings.Contains(trouble.Fix, permission)) {
					t.Errorf("%+v", trouble)
				}
				said = append(said, trouble.Actual)
			}
			if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, action) }) {
				t.Errorf("nothing says that %s is missing: %q", permission, said)
			}
		})
	}
}
