package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Hop is where a packet goes next.
type Hop struct {
	Dev string
	Via netip.Addr // invalid: on the link
	Src netip.Addr // of a packet of this host that has not chosen one
}

// Lookup asks the kernel for the path of a packet of this host to dst. All tables and rules count.
func (k *Kernel) Lookup(dst netip.Addr) (Hop, error) {
	routes, err := k.nl.RouteGet(dst.AsSlice())
	switch {
	case errors.Is(err, unix.EINVAL):
		return Hop{}, errors.New("a blackhole route (or source address check) takes it")
	case errors.Is(err, unix.EHOSTUNREACH):
		return Hop{}, errors.New("an unreachable route takes it, or forwarding is off")
	case errors.Is(err, unix.EACCES):
		return Hop{}, errors.New("a prohibit route takes it")
	case errors.Is(err, unix.ENETUNREACH), err == nil && len(routes) == 0:
		return Hop{}, errors.New("no route leads there")
	case err != nil:
		return Hop{}, fmt.Errorf("find the route to %s: %w", dst, err)
	}
	r := routes[0]
	l, err := k.nl.LinkByIndex(r.LinkIndex)
	if err != nil {
		return Hop{}, fmt.Errorf("find the interface towards %s: %w", dst, err)
	}
	return Hop{Dev: l.Attrs().Name, Via: rtnl.Addr(r.Gw), Src: rtnl.Addr(r.Src)}, nil
}

// Port is a device and the bridge that it is plugged into.
type Port struct {
	Name, Master string
	Up           bool
	Pod          bool // a veth whose other end is in another namespace
	MTU          int
	PodMAC       string // of the pod's end, as the CNI plugin noted it; empty: it did not
	NoCarrier    bool
	Takes        string // the device below, of which it gets every packet
}

// passthru is MACVLAN_MODE_PASSTHRU of linux/if_link.h, and macvlanMode IFLA_MACVLAN_MODE.
const passthru, macvlanMode = 8, 1

// Ports returns all devices.
func (k *Kernel) Ports() ([]Port, error) {
	links, names, err := k.devices(func(device) bool { return true })
	ports := make([]Port, 0, len(links))
	for _, l := range links {
		elsewhere := l.Attribute(unix.IFLA_LINK_NETNSID) != nil
		p := Port{Name: l.Name(), Master: names[l.Master()], Up: l.up(), Pod: l.Kind() == "veth" && elsewhere, MTU: l.MTU(),
			NoCarrier: l.Flags()&unix.IFF_LOWER_UP == 0}
		if mark, ok := l.port(); ok {
			p.PodMAC = mark.Pod.String()
		}
		if rtnl.Int(l.Attribute(unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, macvlanMode)) == passthru && l.Kind() == "macvlan" {
			p.Takes = names[rtnl.Int(l.Attribute(unix.IFLA_LINK))]
		}
		ports = append(ports, p)
	}
	return ports, err
}

// linkNames returns the links' names by index.
func (k *Kernel) linkNames() (map[int]string, error) {
	_, names, err := k.devices(func(device) bool { return false })
	return names, err
}

// Route is a route of the main table.
type Route struct {
	Type string // as iproute2 names it: blackhole, unreachable, …; empty: it leads to a device, or to several
	Dst  netip.Prefix
	Via  netip.Addr // invalid: on the link
	Dev  string     // empty: none, or several
}

// routeTypes are iproute2's names of routes that do not simply lead to a device.
var routeTypes = map[int]string{unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
	unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
	unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw", unix.RTN_NAT: "nat"}

// Routes returns the routes of the main table.
func (k *Kernel) Routes() (all []Route, err error) {
	names, err := k.linkNames()
	if err != nil {
		return nil, err
	}
	for _, family := range netstate.Families {
		list, err := rtnl.Retry("routes", func() ([]netlink.Route, error) { return k.nl.RouteList(nil, int(domains[family])) })
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Dst != nil {
				all = append(all, Route{routeTypes[r.Type], rtnl.Prefix(r.Dst), rtnl.Addr(r.Gw), names[r.LinkIndex]})
			}
		}
	}
	return all, nil
}

// Rules returns the policy routing rules that do not come with the kernel, as text.
func (k *Kernel) Rules() (rules []string, err error) {
	for _, family := range netstate.Families {
		list, err := rtnl.Retry("rules", func() ([]netlink.Rule, error) { return k.nl.RuleList(int(domains[family])) })
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Priority != 0 && r.Priority != 32766 && r.Priority != 32767 {
				rules = append(rules, r.String())
			}
		}
	}
	return rules, nil
}

// Neighbour is an entry of a device's neighbour table.
type Neighbour struct {
	Dev   string
	IP    netip.Addr
	MAC   string
	State netstate.NeighState
}

// Neighbours returns all entries of all devices.
func (k *Kernel) Neighbours() (all []Neighbour, err error) {
	names, err := k.linkNames()
	if err != nil {
		return nil, err
	}
	for _, family := range netstate.Families {
		list, err := rtnl.Retry("neighbours", func() ([]netlink.Neigh, error) {
			return k.nl.NeighList(0, int(domains[family]))
		})
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			all = append(all, Neighbour{names[n.LinkIndex], rtnl.Addr(n.IP), n.HardwareAddr.String(), netstate.NeighState(n.State)})
		}
	}
	return all, nil
}

// answered are the states of an entry whose MAC was told by the neighbour itself, lately enough.
const answered = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

// Resolved reports whether a neighbour has answered for its MAC, and not failed to since. A link-local address has its device
// for a zone.
func Resolved(a netip.Addr) bool {
	dev := 0
	if a.Zone() != "" {
		l, err := netlink.LinkByName(a.Zone())
		if err != nil {
			return false
		}
		dev = l.Attrs().Index
	}
	list, err := rtnl.Retry("neighbours", func() ([]netlink.Neigh, error) {
		return netlink.NeighList(dev, int(domains[netstate.FamilyOf(a)]))
	})
	return err == nil && slices.ContainsFunc(list, func(n netlink.Neigh) bool {
		return rtnl.Addr(n.IP) == a.WithZone("") && n.State&answered != 0
	})
}
