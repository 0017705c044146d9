package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Interfaces are the machine's interfaces as facts: what an underlay can be chosen from.
func (k *Kernel) Interfaces(ctx context.Context) ([]netstate.Interface, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return k.nl.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, err
	}
	onLink, defaults, err := k.connected()
	if err != nil {
		return nil, err
	}
	interfaces := make([]netstate.Interface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		i := netstate.Interface{Name: a.Name, MTU: a.MTU, MAC: macOf(a.HardwareAddr), Up: isUp(a),
			OnLink: onLink[a.Index], Owned: a.Alias == netstate.Mark || a.MasterIndex != 0, AcceptRA: acceptsRA(a.Name),
			Default: [2]bool{defaults[0] == a.Index, defaults[1] == a.Index}}
		for _, addr := range addrs {
			if p := addrPrefix(addr.IPNet); addr.LinkIndex == a.Index && !linkLocal(p.Addr()) {
				i.Addrs = append(i.Addrs, p)
			}
		}
		interfaces = append(interfaces, i)
	}
	return interfaces, ctx.Err()
}

// connected is, by interface index, the prefixes that are reached without a gateway, and the interfaces of
// the preferred IPv4 and IPv6 default routes (0: none).
func (k *Kernel) connected() (onLink map[int][]netip.Prefix, defaults [2]int, err error) {
	onLink = map[int][]netip.Prefix{}
	for i, family := range families {
		routes, err := dump("routes", func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, defaults, err
		}
		best := -1
		for _, r := range routes {
			dst := prefixOf(r.Dst, family)
			switch {
			case r.Type != unix.RTN_UNICAST:
			case dst.Bits() == 0 && (best < 0 || r.Priority < best):
				best, defaults[i] = r.Priority, defaultDev(r)
			case r.Gw == nil && len(r.MultiPath) == 0 && dst.Bits() > 0 && !linkLocal(dst.Addr()):
				onLink[r.LinkIndex] = append(onLink[r.LinkIndex], dst.Masked())
			}
		}
	}
	for _, prefixes := range onLink {
		slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	}
	return onLink, defaults, nil
}

// defaultDev is the interface of a default route, of its first next hop if it has several.
func defaultDev(r netlink.Route) int {
	if len(r.MultiPath) > 0 {
		return r.MultiPath[0].LinkIndex
	}
	return r.LinkIndex
}

// RouteTo is the interface through which the kernel would send to dst now.
func (k *Kernel) RouteTo(dst netip.Addr) (dev string, err error) {
	routes, err := k.nl.RouteGet(dst.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("find the route to %s: %w", dst, err)
	}
	l, err := k.nl.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("find the interface towards %s: %w", dst, err)
	}
	return l.Attrs().Name, nil
}

// acceptsRA says whether the interface is configured by IPv6 router advertisements.
func acceptsRA(dev string) bool {
	value, err := readSysctl("net/ipv6/conf/" + dev + "/accept_ra")
	return err == nil && value != "0"
}
