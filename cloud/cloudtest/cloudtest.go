// Package cloudtest is the suite that each implementation of cloud.Cloud passes: against the network in memory, against a
// provider's front of it, and against whatever else speaks the provider's protocol.
package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/internal/testwait"
)

// World is a cloud with two machines, and the API as each sees it.
type World struct {
	Nodes [2]cloud.Cloud
	Local [2][]netip.Addr // the machines' addresses
	Six   bool            // routes of IPv6 can be made
	// Network is behind the API; nil if that is a server of somebody else's. Faults are tried only with it.
	Network *fake.Network
	// Overwrites: the server takes a second route to a destination for a change of the first, as no provider does.
	Overwrites bool
}

// Pages is how many routes a table has in the test of paging.
const Pages = 600

// Run runs the suite. Each test gets a World of its own.
func Run(t *testing.T, world func(t *testing.T) World) {
	for name, test := range map[string]func(*testing.T, World){
		"Self": testSelf, "Routes": testRoutes, "IPv6": testIPv6, "Twice": testTwice, "Foreign": testForeign,
		"Cancelled": testCancelled, "Forwarding": testForwarding,
	} {
		t.Run(name, func(t *testing.T) { test(t, world(t)) })
	}
	if world(t).Network == nil {
		return
	}
	for name, test := range map[string]func(*testing.T, World){
		"Blackhole": testBlackhole, "Full": testFull, "Paging": testPaging, "Classes": testClasses,
	} {
		t.Run(name, func(t *testing.T) { test(t, world(t)) })
	}
}

// self returns who a node is.
func self(t *testing.T, w World, node int) cloud.Self {
	t.Helper()
	s, err := w.Nodes[node].Self(t.Context(), w.Local[node])
	if err != nil {
		t.Fatalf("Self of node %d: %v", node, err)
	}
	return s
}

// own returns the routes to pods that a node's tables have. Others, as the network's own, are the provider's.
func own(t *testing.T, w World, node int) (routes []cloud.Route) {
	t.Helper()
	all, err := w.Nodes[node].List(t.Context(), self(t, w, node))
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, r := range all {
		if isPods(r.Dst) {
			r.Name, r.Mark = "", ""
			routes = append(routes, r)
		}
	}
	slices.SortFunc(routes, func(a, b cloud.Route) int { return strings.Compare(a.String(), b.String()) })
	return routes
}

var pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/14"), netip.MustParsePrefix("fd00:244::/32")}

func isPods(p netip.Prefix) bool {
	return slices.ContainsFunc(pods, func(n netip.Prefix) bool { return n.Contains(p.Addr()) && p.Bits() >= n.Bits() })
}

// to returns the node's route to a prefix, in its first table.
func to(s cloud.Self, dst string) cloud.Route {
	r := cloud.Route{Dst: netip.MustParsePrefix(dst), Target: s.Target}
	if len(s.Tables) > 0 {
		r.Table = s.Tables[0]
	}
	return r
}

func apply(t *testing.T, w World, node int, c cloud.Change) {
	t.Helper()
	if err := w.Nodes[node].Apply(t.Context(), self(t, w, node), c); err != nil {
		t.Fatalf("%s: %v", c, err)
	}
}

func equal(t *testing.T, got []cloud.Route, want ...cloud.Route) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("routes %v, want %v", got, want)
	}
}

// listed returns a route as List shows it, with what the provider adds.
func listed(t *testing.T, w World, node int, r cloud.Route) cloud.Route {
	t.Helper()
	all, err := w.Nodes[node].List(t.Context(), self(t, w, node))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(o cloud.Route) bool { return o.Table == r.Table && o.Dst == r.Dst })
	if i < 0 {
		t.Fatalf("there is no route %s in %v", r, all)
	}
	return all[i]
}

func testSelf(t *testing.T, w World) {
	a, b := self(t, w, 0), self(t, w, 1)
	if a.Target == "" || b.Target == "" || a.Target == b.Target || a.Network == "" || a.Network != b.Network {
		t.Errorf("%+v and %+v: want two targets of one network", a, b)
	}
	if got, err := w.Nodes[0].Self(t.Context(), []netip.Addr{netip.MustParseAddr("198.51.100.77")}); err == nil {
		t.Errorf("an address that is not the machine's: got %+v, want an error", got)
	} else if !strings.Contains(err.Error(), "198.51.100.77") {
		t.Errorf("the error does not name the address: %v", err)
	}
}

// testRoutes creates, replaces and deletes.
func testRoutes(t *testing.T, w World) {
	one, two := to(self(t, w, 0), "10.244.1.0/24"), to(self(t, w, 1), "10.244.2.0/24")
	equal(t, own(t, w, 0))
	apply(t, w, 0, cloud.Change{Op: cloud.Create, Route: one})
	apply(t, w, 1, cloud.Change{Op: cloud.Create, Route: two})
	equal(t, own(t, w, 0), one, two)
	moved := one
	moved.Target = two.Target
	apply(t, w, 1, cloud.Change{Op: cloud.Replace, Route: moved, Old: listed(t, w, 1, one)})
	equal(t, own(t, w, 0), moved, two)
	apply(t, w, 1, cloud.Change{Op: cloud.Delete, Route: listed(t, w, 1, moved)})
	equal(t, own(t, w, 1), two)
}

func testIPv6(t *testing.T, w World) {
	r := to(self(t, w, 0), "fd00:244:0:1::/64")
	if !w.Six {
		if err := w.Nodes[0].Apply(t.Context(), self(t, w, 0), cloud.Change{Op: cloud.Create, Route: r}); err == nil {
			t.Error("a route of IPv6 was made; want an error that says that there are none")
		}
		return
	}
	apply(t, w, 0, cloud.Change{Op: cloud.Create, Route: r})
	equal(t, own(t, w, 0), r)
	apply(t, w, 0, cloud.Change{Op: cloud.Delete, Route: listed(t, w, 0, r)})
	equal(t, own(t, w, 0))
}

// testTwice: what is there already, and what is gone already, are classes of their own.
func testTwice(t *testing.T, w World) {
	s := self(t, w, 0)
	one := to(s, "10.244.1.0/24")
	apply(t, w, 0, cloud.Change{Op: cloud.Create, Route: one})
	other := to(self(t, w, 1), "10.244.1.0/24")
	err := w.Nodes[1].Apply(t.Context(), self(t, w, 1), cloud.Change{Op: cloud.Create, Route: other})
	if !w.Overwrites && !errors.Is(err, cloud.ErrExists) {
		t.Errorf("create it twice: %v, want %v", err, cloud.ErrExists)
	}
	there := listed(t, w, 0, one)
	apply(t, w, 0, cloud.Change{Op: cloud.Delete, Route: there})
	if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: there}); !errors.Is(err, cloud.ErrGone) {
		t.Errorf("delete it twice: %v, want %v", err, cloud.ErrGone)
	}
}

// testForeign: routes of others are listed, and stay.
func testForeign(t *testing.T, w World) {
	if w.Network == nil {
		return
	}
	s := self(t, w, 0)
	foreign := []cloud.Route{to(s, "0.0.0.0/0"), to(self(t, w, 1), "10.244.0.0/16"), to(s, "192.0.2.0/24")}
	foreign[0].Target = "igw-1"
	w.Network.Set(foreign...)
	apply(t, w, 0, cloud.Change{Op: cloud.Create, Route: to(s, "10.244.1.0/24")})
	equal(t, own(t, w, 0), foreign[1], to(s, "10.244.1.0/24"))
	apply(t, w, 0, cloud.Change{Op: cloud.Delete, Route: listed(t, w, 0, to(s, "10.244.1.0/24"))})
	equal(t, w.Network.Routes(), foreign...)
}

func testCancelled(t *testing.T, w World) {
	s := self(t, w, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := w.Nodes[0].List(ctx, s)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("List: %v, want %v", err, context.Canceled)
		}
	case <-time.After(testwait.Limit):
		t.Error("List does not end with its context")
	}
}

// testForwarding: Check makes the interface forward where that is permitted at run time, or says that it does not.
func testForwarding(t *testing.T, w World) {
	s := self(t, w, 0)
	troubles, err := w.Nodes[0].Check(t.Context(), s)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if w.Network == nil {
		return
	}
	off := slices.ContainsFunc(troubles, func(t cloud.Trouble) bool { return t.ID == cloud.ForwardingOff })
	nic, _ := w.Network.NIC(func(n fake.NIC) bool { return slices.Contains(n.Addrs, w.Local[0][0]) })
	if nic.Forwards == off {
		t.Errorf("the interface forwards: %t; troubles %+v", nic.Forwards, troubles)
	}
	w.Network.SetForwards(nic.ID, true)
	troubles, err = w.Nodes[0].Check(t.Context(), s)
	if err != nil || slices.ContainsFunc(troubles, func(t cloud.Trouble) bool { return t.ID == cloud.ForwardingOff }) {
		t.Errorf("when it forwards: %+v, %v", troubles, err)
	}
}

// testBlackhole: a route to a machine that is gone is dead, and can be replaced and deleted.
func testBlackhole(t *testing.T, w World) {
	one := to(self(t, w, 1), "10.244.1.0/24")
	apply(t, w, 1, cloud.Change{Op: cloud.Create, Route: one})
	nic, _ := w.Network.NIC(func(n fake.NIC) bool { return slices.Contains(n.Addrs, w.Local[1][0]) })
	w.Network.RemoveNIC(nic.ID)
	dead := own(t, w, 0)
	if len(dead) != 1 || dead[0].State != cloud.Blackhole {
		t.Fatalf("routes %v, want a dead one", dead)
	}
	mine := to(self(t, w, 0), "10.244.1.0/24")
	apply(t, w, 0, cloud.Change{Op: cloud.Replace, Route: mine, Old: listed(t, w, 0, one)})
	equal(t, own(t, w, 0), mine)
}

func testFull(t *testing.T, w World) {
	w.Network.Break(fake.Faults{Full: 1})
	s := self(t, w, 0)
	w.Network.Set(to(s, "192.0.2.0/24"))
	err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Create, Route: to(s, "10.244.1.0/24")})
	if !errors.Is(err, cloud.ErrFull) {
		t.Errorf("got %v, want %v", err, cloud.ErrFull)
	}
}

// testPaging lists more than any provider returns at once.
func testPaging(t *testing.T, w World) {
	s := self(t, w, 1)
	var all []cloud.Route
	for i := range Pages {
		all = append(all, to(s, fmt.Sprintf("10.%d.%d.0/24", 244+i/256, i%256)))
	}
	w.Network.Set(all...)
	if got := own(t, w, 0); len(got) != Pages {
		t.Errorf("%d routes, want %d", len(got), Pages)
	}
}

// testClasses: each class of error arrives as itself, from reads and writes.
func testClasses(t *testing.T, w World) {
	s := self(t, w, 0)
	change := cloud.Change{Op: cloud.Create, Route: to(s, "10.244.1.0/24")}
	for _, test := range []struct {
		method string
		class  error
	}{
		{"List", cloud.ErrThrottled}, {"List", cloud.ErrDenied},
		{"Apply", cloud.ErrThrottled}, {"Apply", cloud.ErrBusy}, {"Apply", cloud.ErrDenied},
	} {
		w.Network.Break(fake.Faults{Fail: func(method string) error {
			if method == test.method {
				return test.class
			}
			return nil
		}})
		var err error
		if test.method == "List" {
			_, err = w.Nodes[0].List(t.Context(), s)
		} else {
			err = w.Nodes[0].Apply(t.Context(), s, change)
		}
		if !errors.Is(err, test.class) {
			t.Errorf("%s: got %v, want %v", test.method, err, test.class)
		}
	}
}
