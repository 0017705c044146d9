package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Observe reads back what is ours (links by mark with all that stands on them, and routes), what stands in the
// slots of want's links and routes, and the sysctls that want names.
func (k *Kernel) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	ours, names, err := k.devices(func(d device) bool {
		mark, _ := d.port()
		return ownsLink(d, want) || want[mark.Key()] != nil
	})
	if err != nil {
		return nil, err
	}
	o := observation{Kernel: k, want: want, state: make(netstate.State, len(want)), names: names,
		foreign: map[onLink]bool{}, filter: newFilter(want)}
	o.filter.names = names
	for _, d := range ours {
		index, kind := d.Index(), d.Kind()
		if mark, isPort := d.port(); isPort {
			o.filter.marks[index] = mark
			observed(&o, d.decodePort(mark, names))
			continue
		}
		o.filter.links[index] = kind
		o.filter.devs[kind] = append(o.filter.devs[kind], d.Name())
		object := d.decode(names)
		o.filter.objects[index] = object
		o.state.Add(object)
	}
	k.filter.Store(o.filter)
	for _, read := range []func() error{o.addrs, o.entries, o.routes, o.provided} { // routes asks for what addrs has read
		if err := read(); err != nil {
			return nil, err
		}
	}
	return o.state, errors.Join(observeSysctls(o.filter.sysctls, o.state), ctx.Err())
}

func newFilter(want netstate.State) *filter {
	f := &filter{want: want, applied: netstate.State{}, links: map[int]string{}, objects: map[int]netstate.Object{},
		devs: map[string][]string{}, wanted: map[string]bool{}, pods: map[netstate.MAC]netstate.Port{},
		marks: map[int]netstate.Port{}, foreign: map[netstate.Key]bool{}}
	for k, o := range want {
		switch k.Kind {
		case netstate.KindPort:
			p := o.(netstate.Port)
			f.pods[p.Pod] = p
		case netstate.KindLink:
			f.wanted[k.Name] = true
		case netstate.KindSysctl:
			f.sysctls = append(f.sysctls, o.(netstate.Sysctl))
		}
	}
	slices.SortFunc(f.sysctls, func(a, b netstate.Sysctl) int { return strings.Compare(a.Name, b.Name) })
	return f
}

// observation is one Observe.
type observation struct {
	*Kernel
	want    netstate.State
	state   netstate.State
	names   map[int]string // of all links, by index
	foreign map[onLink]bool
	filter  *filter
}

// onLink is a prefix that an address of a link has.
type onLink struct {
	index  int
	prefix netip.Prefix // masked
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

// addrs reads the addresses of our links. Link-local ones are the kernel's, but for those that are wanted.
func (o *observation) addrs() error {
	all, err := o.addresses()
	for _, a := range all {
		if _, owned := o.filter.links[a.Index]; !owned {
			o.foreign[onLink{a.Index, a.Subnet()}] = true
			continue
		}
		addr := a.decode(o.names[a.Index])
		if _, wanted := o.want[addr.Key()]; wanted || !linkLocal(addr.Prefix.Addr()) {
			o.state.Add(addr)
		}
	}
	return err
}

// entries reads the neighbours and forwarding entries of our overlay devices, and what somebody wrote about pods into the
// bridge. The kernel does not filter them for one device.
func (o *observation) entries() error {
	for _, domain := range []byte{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		err := o.list("neighbours", unix.RTM_GETNEIGH, &netlink.Ndmsg{Family: domain}, func(m []byte) error {
			e, err := parseEntry(m)
			pods, misled := o.filter.decodeBridgeFDB(e)
			switch {
			case misled:
				observed(o, pods)
			case !o.filter.keepsEntries(e.Index):
			case domain == unix.AF_BRIDGE:
				if f, ok := decodeFDB(o.names[e.Index], e, o.names); ok {
					observed(o, f)
				}
			default:
				if n, ok := o.filter.decodeNeigh(e); ok {
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
			if o.isForeign(r) {
				o.filter.foreign[r.slot()] = o.filter.foreign[r.slot()] || !o.isBehind(r)
			} else if (o.wantsSlot(r) || o.ownsRoute(r, onOwned && r.hops == 0)) && !linkLocal(r.dst.Addr()) {
				o.route(decodeRoute(r, o.names))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isForeign reports whether the kernel made a route for an address of a link that is not ours. It is never replaced: the
// kernel adds what is ours behind it.
func (o *observation) isForeign(r route) bool {
	return r.protocol == unix.RTPROT_KERNEL && r.table == unix.RT_TABLE_MAIN && !r.gw.IsValid() && r.hops == 0 &&
		o.foreign[onLink{r.index, r.dst}]
}

// isBehind reports whether another route has been read that the kernel replaces rather than r. IPv6 goes by more than the
// order.
func (o *observation) isBehind(r route) bool {
	first, ok := o.state[r.slot()].(netstate.Route)
	return ok && first.TOS == int(r.tos) && r.dst.Addr().Is4()
}

// wantsSlot reports whether a route is where a wanted one should be, or where it would be without a metric of its own:
// there the kernel prefers it.
func (o *observation) wantsSlot(r route) bool {
	if r.table != unix.RT_TABLE_MAIN {
		return false
	}
	_, wanted := o.want[r.slot()]
	if !wanted && r.priority == netstate.DefaultMetric(r.dst.Addr()) {
		_, wanted = o.want.PeerRoute(r.dst)
	}
	return wanted
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
