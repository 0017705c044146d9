package fake

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/twill-net/twill/netstate"
)

// main is the routing table that netstate is about.
const main = 254

// route is a route of any table, with all its next hops.
type route struct {
	netstate.Route
	table int
	hops  []hop
}

type hop struct {
	via netip.Addr
	dev string
}

func newRoute(o netstate.Route) route {
	r := route{Route: o, table: cmp.Or(o.Table, main)}
	if o.Dev != "" {
		r.hops = []hop{{o.Via, o.Dev}}
	}
	return r
}

func (r route) uses(dev string) bool {
	return slices.ContainsFunc(r.hops, func(h hop) bool { return h.dev == dev })
}

// contends reports whether two routes are in one slot of the kernel.
func (r route) contends(o route) bool {
	return r.table == o.table && r.Dst == o.Dst && r.Metric == o.Metric && r.TOS == o.TOS
}

func (k *Kernel) observeRoutes(want, state netstate.State) {
	for _, r := range k.routes {
		_, wanted := want[r.Key()]
		if !wanted && r.Key() == (netstate.Route{Dst: r.Dst, Metric: netstate.DefaultMetric(r.Dst.Addr())}).Key() {
			_, wanted = want.PeerRoute(r.Dst)
		}
		if (r.table == main || r.Protocol == netstate.Protocol) && (wanted || k.ownsRoute(r, want)) {
			observeRoute(r.Route, want, state)
		}
	}
}

// observeRoute gives the slot to the wanted one of several routes, else to the first.
func observeRoute(r netstate.Route, want, state netstate.State) {
	key := r.Key()
	first, taken := state[key].(netstate.Route)
	if !taken {
		state.Add(r)
		return
	}
	if want[key] == r {
		state.Add(r)
		r = first
	}
	for r.Nth = 2; state[r.Key()] != nil; r.Nth++ {
	}
	state.Add(r)
}

func (k *Kernel) ownsRoute(r route, want netstate.State) bool {
	const boot, static = 3, 4
	onOwned := r.Dev != "" && k.owns(r.Dev, want)
	switch r.Protocol {
	case netstate.Protocol:
		return true
	case boot:
		return onOwned || slices.ContainsFunc(k.left, func(l netstate.Left) bool { return l.Made(r.Route, want) })
	case static:
		return onOwned
	}
	return false
}

func (k *Kernel) putEntry(o netstate.Object) error {
	dev := o.Key().Name
	if _, err := k.link(dev); err != nil {
		return err
	}
	k.entries.Add(o)
	if a, ok := o.(netstate.Addr); ok {
		k.connect(a)
	}
	if !linkLocal(o.Key().Prefix.Addr()) {
		k.changed(dev)
	}
	return nil
}

// putFDB has one destination for a unicast MAC: replace puts the new one there, append does nothing.
func (k *Kernel) putFDB(o netstate.FDB, replace bool) error {
	if o.MAC.IsUnicast() && replace {
		k.deleteFDB(netstate.FDB{Dev: o.Dev, MAC: o.MAC})
	}
	if o.MAC.IsUnicast() && k.hasFDB(o) {
		return nil
	}
	return k.putEntry(o)
}

func (k *Kernel) hasFDB(o netstate.FDB) bool {
	for key := range k.entries {
		if key.Kind == netstate.KindFDB && key.Name == o.Dev && key.MAC == o.MAC {
			return true
		}
	}
	return false
}

// deleteFDB deletes one destination, or all of a MAC if o says none or has attributes beyond it.
func (k *Kernel) deleteFDB(o netstate.FDB) {
	for key := range k.entries {
		if key.Kind == netstate.KindFDB && key.Name == o.Dev && key.MAC == o.MAC &&
			(key == o.Key() || o.Extra != "" || !o.Dst.IsValid()) {
			delete(k.entries, key)
		}
	}
	k.changed(o.Dev)
}

// connect makes the route that comes with an address of a device that is up.
func (k *Kernel) connect(a netstate.Addr) {
	r := newRoute(netstate.ConnectedRoute(a.Dev, a.Prefix))
	same := func(o route) bool { return o.Route == r.Route }
	if k.links[a.Dev].Up && !slices.ContainsFunc(k.routes, same) && (!a.Prefix.IsSingleIP() || a.Prefix.Addr().Is6()) {
		k.routes = append(k.routes, r)
	}
}

// deleteAddr of the last IPv4 address takes the device's IPv4 routes and neighbours.
func (k *Kernel) deleteAddr(o netstate.Addr) {
	if _, ok := k.entries[o.Key()]; !ok {
		return
	}
	delete(k.entries, o.Key())
	connected := netstate.ConnectedRoute(o.Dev, o.Prefix)
	k.deleteFirst(o.Dev, func(r route) bool {
		return r.table == main && r.Dst == connected.Dst && r.Dev == o.Dev && r.Src == connected.Src &&
			r.Metric == connected.Metric
	})
	if o.Prefix.Addr().Is4() && !k.hasIPv4(o.Dev) {
		k.purge(o.Dev, func(o netstate.Object) bool {
			return o.Key().Prefix.Addr().Is4() && (o.Key().Kind == netstate.KindRoute || o.Key().Kind == netstate.KindNeigh)
		})
	}
	k.changed(o.Dev)
}

func (k *Kernel) hasIPv4(dev string) bool {
	for key := range k.entries {
		if key.Kind == netstate.KindAddr && key.Name == dev && key.Prefix.Addr().Is4() {
			return true
		}
	}
	return false
}

// putRoute replaces; if the kernel refuses because the same route stands further back, the first goes.
func (k *Kernel) putRoute(want netstate.Route, was netstate.Object) error {
	r := newRoute(want)
	err := k.replaceRoute(r)
	if old, ok := was.(netstate.Route); ok && err != nil {
		k.deleteRoute(old)
		err = k.replaceRoute(r)
	}
	if (err == syscall.ENETUNREACH || err == syscall.EHOSTUNREACH) && want.Via.IsValid() && !want.Onlink {
		return fmt.Errorf("gateway %s is not on the same L2 segment as %s, use the vxlan backend to reach it: %w",
			want.Via, want.Dev, err)
	}
	return err
}

func (k *Kernel) replaceRoute(r route) error {
	if err := k.checkHops(r); err != nil {
		return err
	}
	first := slices.IndexFunc(k.routes, r.contends)
	for i, o := range k.routes {
		if i != first && r.contends(o) && o.Route == r.Route {
			return syscall.EEXIST
		}
	}
	if first < 0 {
		k.routes = append(k.routes, r)
	} else {
		k.routes[first] = r
	}
	k.changed(r.Dev)
	return nil
}

// addRoute is "ip route add", or append, or prepend.
func (k *Kernel) addRoute(r route, how string) error {
	if err := k.checkHops(r); err != nil {
		return err
	}
	first := slices.IndexFunc(k.routes, r.contends)
	switch {
	case first < 0 || how == "append":
		k.routes = append(k.routes, r)
	case how == "prepend":
		k.routes = slices.Insert(k.routes, first, r)
	default:
		return syscall.EEXIST
	}
	k.changed(r.Dev)
	return nil
}

// checkHops refuses what the kernel refuses: "Nexthop device is not up", "Nexthop has invalid gateway".
func (k *Kernel) checkHops(r route) error {
	for _, h := range r.hops {
		l, err := k.link(h.dev)
		switch {
		case err != nil:
			return err
		case !l.Up:
			return syscall.ENETDOWN
		case !h.via.IsValid() || r.Onlink || k.reaches(h.dev, h.via):
		case h.via.Is4():
			return syscall.ENETUNREACH
		default:
			return syscall.EHOSTUNREACH
		}
	}
	return nil
}

// deleteRoute deletes the first route that has o's destination, metric, TOS, protocol and next hop.
func (k *Kernel) deleteRoute(o netstate.Route) {
	k.deleteFirst(o.Dev, func(r route) bool {
		return r.contends(newRoute(o)) && r.Protocol == o.Protocol && (!o.Via.IsValid() || r.Via == o.Via) &&
			(o.Dev == "" || r.Dev == o.Dev)
	})
}

// deleteFirst reports whether there was such a route.
func (k *Kernel) deleteFirst(dev string, match func(route) bool) bool {
	i := slices.IndexFunc(k.routes, match)
	if i < 0 {
		return false
	}
	k.routes = slices.Delete(k.routes, i, i+1)
	k.changed(dev)
	return true
}
