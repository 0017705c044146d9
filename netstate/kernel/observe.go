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

// Observe reads back what is ours (links by mark or by a name in want with all that stands on them, and routes)
// and the sysctls that want names.
func (k *Kernel) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	state, f := netstate.State{}, &filter{links: map[int]bool{}, sysctls: sysctlNames(want)}
	for _, l := range links {
		if !ownsLink(l.Attrs(), want) {
			continue
		}
		f.links[l.Attrs().Index] = l.Type() == "vxlan"
		state.Add(decodeLink(l, names))
		if err := k.observeOn(l, state); err != nil {
			return nil, err
		}
	}
	k.filter.Store(f)
	err = errors.Join(k.observeRoutes(names, f.links, state), observeSysctls(f.sysctls, state))
	return state, errors.Join(err, ctx.Err())
}

func (k *Kernel) links() ([]netlink.Link, error) {
	return dump("links", k.nl.LinkList)
}

// observeOn adds the addresses of an owned link and, on a VXLAN device, its neighbours and FDB entries. A
// bridge's neighbours are the pods': not ours. A link that went away meanwhile has nothing on it.
func (k *Kernel) observeOn(l netlink.Link, state netstate.State) error {
	dev := l.Attrs().Name
	addrs, err := dump("addresses on "+dev, func() ([]netlink.Addr, error) { return k.nl.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return ignoreGone(err)
	}
	for _, a := range addrs {
		if o, ok := decodeAddr(dev, a); ok {
			state.Add(o)
		}
	}
	if l.Type() != "vxlan" {
		return nil
	}
	return ignoreGone(k.observeNeighbours(l.Attrs(), state))
}

func (k *Kernel) observeNeighbours(l *netlink.LinkAttrs, state netstate.State) error {
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		neighs, err := dump("neighbours on "+l.Name, func() ([]netlink.Neigh, error) { return k.nl.NeighList(l.Index, family) })
		if err != nil {
			return err
		}
		for _, n := range neighs {
			if o, ok := decodeNeigh(l.Name, n); ok {
				state.Add(o)
			}
		}
	}
	return nil
}

func (k *Kernel) observeRoutes(names map[int]string, owned map[int]bool, state netstate.State) error {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	for _, family := range families {
		routes, err := dump("routes", func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return err
		}
		for _, r := range routes {
			dst := prefixOf(r.Dst, family)
			_, onOwned := owned[r.LinkIndex]
			if k.ownsRoute(r, dst, onOwned) && !linkLocal(dst.Addr()) {
				state.Add(decodeRoute(r, dst, names))
			}
		}
	}
	return nil
}

// linkLocal says whether the kernel manages a by itself: link-local and multicast.
func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() || a.IsMulticast() }

// ignoreGone drops the error of a dump on a link that has been deleted since it was listed.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
