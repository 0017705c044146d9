package kernel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

var families = [...]int{unix.AF_INET, unix.AF_INET6}

// Observe reads back what is ours (links by mark with all that stands on them, and routes), what stands in the
// slots of want's links and routes, and the sysctls that want names.
func (k *Kernel) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	o := observation{Kernel: k, want: want, state: netstate.State{}, names: make(map[int]string, len(links)),
		filter: &filter{links: map[int]bool{}, sysctls: sysctlNames(want), devs: map[string][]string{}}}
	for _, l := range links {
		o.names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range links {
		if ownsLink(l.Attrs(), want) {
			o.filter.links[l.Attrs().Index] = l.Type() == "vxlan"
			o.filter.devs[l.Type()] = append(o.filter.devs[l.Type()], l.Attrs().Name)
			o.state.Add(decodeLink(l, o.names))
		}
	}
	k.filter.Store(o.filter)
	for _, part := range []func() error{o.addrs, o.neighbours, o.forwarding, o.routes, o.parts} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return o.state, errors.Join(observeSysctls(o.filter.sysctls, o.state), ctx.Err())
}

// observation is one Observe.
type observation struct {
	*Kernel
	want   netstate.State
	state  netstate.State
	names  map[int]string // of all links, by index
	filter *filter
}

func (o *observation) parts() error {
	for _, part := range o.Kernel.parts {
		state, err := part.Observe(o.filter.devs[part.Type()], o.want)
		if err != nil {
			return err
		}
		o.state.Merge(state)
	}
	return nil
}

func (k *Kernel) links() ([]netlink.Link, error) {
	return dump("links", k.nl.LinkList)
}

func (o *observation) addrs() error {
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return o.nl.AddrList(nil, unix.AF_UNSPEC) })
	for _, a := range addrs {
		if _, owned := o.filter.links[a.LinkIndex]; !owned {
			continue
		}
		if addr, ok := decodeAddr(o.names[a.LinkIndex], a); ok {
			o.state.Add(addr)
		}
	}
	return err
}

// neighbours are those on VXLAN devices: a bridge's are the pods', not ours.
func (o *observation) neighbours() error {
	for _, family := range families {
		neighs, err := dump("neighbours", func() ([]netlink.Neigh, error) { return o.nl.NeighList(0, family) })
		if err != nil {
			return err
		}
		for _, n := range neighs {
			if neigh, ok := decodeNeigh(o.names[n.LinkIndex], n); ok && o.filter.links[n.LinkIndex] {
				o.state.Add(neigh)
			}
		}
	}
	return nil
}

func (o *observation) forwarding() error {
	entries, err := o.fdb()
	for _, n := range entries {
		if entry, ok := decodeFDB(o.names[n.LinkIndex], n, o.names); ok && o.filter.links[n.LinkIndex] {
			o.state.Add(entry)
		}
	}
	return err
}

func (o *observation) routes() error {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	for _, family := range families {
		routes, err := dump("routes", func() ([]netlink.Route, error) {
			return o.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return err
		}
		for _, r := range routes {
			dst := prefixOf(r.Dst, family)
			_, onOwned := o.filter.links[r.LinkIndex]
			_, wanted := o.want[netstate.Key{Kind: netstate.KindRoute, Prefix: dst, Metric: r.Priority}]
			if (wanted || o.ownsRoute(r, dst, onOwned)) && !linkLocal(dst.Addr()) {
				o.route(decodeRoute(r, dst, o.names))
			}
		}
	}
	return nil
}

// route adds r. Of several routes in one slot ("ip route append" and "prepend" make them) the wanted one has the
// slot, so that the others are deleted, or else the first.
func (o *observation) route(r netstate.Route) {
	key := r.Key()
	first, taken := o.state[key].(netstate.Route)
	if !taken {
		o.state.Add(r)
		return
	}
	if o.want[key] == r {
		o.state.Add(r)
		r = first
	}
	for r.Nth = 2; o.state[r.Key()] != nil; r.Nth++ {
	}
	o.state.Add(r)
}

// linkLocal says whether the kernel manages a by itself: link-local and multicast.
func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() || a.IsMulticast() }
