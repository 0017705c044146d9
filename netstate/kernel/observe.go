package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Observe reads back what is ours (links by mark with all that stands on them, and routes), what stands in the
// slots of want's links and routes, and the sysctls that want names.
func (k *Kernel) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	o := observation{Kernel: k, want: want, state: make(netstate.State, len(want)), names: namesOf(links),
		filter: newFilter(want)}
	o.filter.names = o.names
	for _, l := range links {
		if ownsLink(l.Attrs(), want) {
			o.filter.links[l.Attrs().Index] = l.Type() == "vxlan"
			o.filter.devs[l.Type()] = append(o.filter.devs[l.Type()], l.Attrs().Name)
			object := decodeLink(l, o.names)
			o.filter.objects[l.Attrs().Index] = object
			o.state.Add(object)
		}
	}
	k.filter.Store(o.filter)
	for _, read := range []func() error{o.addrs, o.entries, o.routes, o.provided} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return o.state, errors.Join(observeSysctls(o.filter.sysctls, o.state), ctx.Err())
}

func newFilter(want netstate.State) *filter {
	f := &filter{want: want, applied: netstate.State{}, links: map[int]bool{}, objects: map[int]netstate.Object{},
		devs: map[string][]string{}, wanted: map[string]bool{}}
	for k := range want {
		switch k.Kind {
		case netstate.KindLink:
			f.wanted[k.Name] = true
		case netstate.KindSysctl:
			f.sysctls = append(f.sysctls, k.Name)
		}
	}
	slices.Sort(f.sysctls)
	return f
}

// observation is one Observe.
type observation struct {
	*Kernel
	want   netstate.State
	state  netstate.State
	names  map[int]string // of all links, by index
	filter *filter
}

func (o *observation) provided() error {
	for _, p := range o.providers {
		state, err := p.Observe(o.filter.devs, o.want)
		if err != nil {
			return err
		}
		o.state.Merge(state)
	}
	return nil
}

func (k *Kernel) links() ([]netlink.Link, error) {
	return rtnl.Retry("links", k.nl.LinkList)
}

func (o *observation) addrs() error {
	addrs, err := rtnl.Retry("addresses", func() ([]netlink.Addr, error) { return o.nl.AddrList(nil, unix.AF_UNSPEC) })
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

// entries reads the neighbours and forwarding entries of our VXLAN devices: a bridge's are the pods', not ours. The
// kernel does not filter them for one device.
func (o *observation) entries() error {
	for _, domain := range []byte{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		err := o.list("neighbours", unix.RTM_GETNEIGH, &netlink.Ndmsg{Family: domain}, func(m []byte) error {
			e, err := parseEntry(m)
			switch {
			case !o.filter.links[e.index]:
			case domain == unix.AF_BRIDGE:
				if f, ok := decodeFDB(o.names[e.index], e, o.names); ok {
					observed(o, f)
				}
			default:
				if n, ok := decodeNeigh(o.names[e.index], e); ok {
					observed(o, n)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// observed adds v. One that is as wanted is the wanted object itself, so that thousands are not allocated again.
func observed[T interface {
	comparable
	netstate.Object
}](o *observation, v T) {
	key := v.Key()
	if want := o.want[key]; want != nil {
		if w, ok := want.(T); ok && w == v {
			o.state[key] = want
			return
		}
	}
	o.state[key] = v
}

func (o *observation) routes() error {
	for _, family := range netstate.Families {
		err := o.Kernel.routes(family, func(r route) {
			_, onOwned := o.filter.links[r.index]
			_, wanted := o.want[netstate.Key{Kind: netstate.KindRoute, Prefix: r.dst, Metric: r.priority}]
			if (wanted || o.ownsRoute(r, onOwned && r.hops == 0)) && !linkLocal(r.dst.Addr()) {
				o.route(decodeRoute(r, o.names))
			}
		})
		if err != nil {
			return err
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
		observed(o, r)
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

// linkLocal reports whether the kernel manages a by itself: link-local and multicast.
func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() || a.IsMulticast() }
