package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Hop is what the kernel answers when it is asked where a packet goes.
type Hop struct {
	Dev   string
	Via   netip.Addr // invalid: on the link
	Src   netip.Addr // of a packet of this host that has not chosen one
	Table int        // main is 254
}

// Lookup asks the kernel for the way of a packet to dst: of this host's own, or of one that comes from src in through
// a device. All tables and rules count. The error says what a route that refuses packets is.
func (k *Kernel) Lookup(dst, src netip.Addr, in string) (Hop, error) {
	options := &netlink.RouteGetOptions{Iif: in}
	if src.IsValid() {
		options.SrcAddr = src.AsSlice()
	}
	routes, err := k.nl.RouteGetWithOptions(dst.AsSlice(), options)
	switch {
	case errors.Is(err, unix.EINVAL):
		return Hop{}, errors.New("a blackhole route (or source address check) takes it")
	case errors.Is(err, unix.EHOSTUNREACH):
		return Hop{}, errors.New("an unreachable route takes it, or forwarding is off")
	case errors.Is(err, unix.EACCES):
		return Hop{}, errors.New("a prohibit route takes it")
	case errors.Is(err, unix.ENETUNREACH):
		return Hop{}, errors.New("no route leads there")
	case err != nil:
		return Hop{}, fmt.Errorf("find the way to %s: %w", dst, err)
	case len(routes) == 0:
		return Hop{}, errors.New("no route leads there")
	}
	r := routes[0]
	l, err := k.nl.LinkByIndex(r.LinkIndex)
	if err != nil {
		return Hop{}, fmt.Errorf("find the interface towards %s: %w", dst, err)
	}
	return Hop{Dev: l.Attrs().Name, Via: rtnl.Addr(r.Gw), Src: rtnl.Addr(r.Src), Table: r.Table}, nil
}

// Port is what a device is plugged into.
type Port struct {
	Name, Master string
	Up, Carrier  bool
	Veth         bool // whose other end is in another namespace
}

// Ports are all devices with what they are plugged into.
func (k *Kernel) Ports() ([]Port, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	ports := make([]Port, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		ports = append(ports, Port{a.Name, names[a.MasterIndex], isUp(a), a.RawFlags&unix.IFF_LOWER_UP != 0,
			l.Type() == "veth" && a.NetNsID >= 0})
	}
	return ports, nil
}

// Rule is a policy routing rule in words, with its priority.
type Rule struct {
	Priority int
	Text     string
}

// Rules are the policy routing rules that do not come with the kernel.
func (k *Kernel) Rules() ([]Rule, error) {
	var rules []Rule
	for _, family := range netstate.Families {
		list, err := rtnl.Retry("rules", func() ([]netlink.Rule, error) { return k.nl.RuleList(int(domains[family])) })
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Priority == 0 || r.Priority == 32766 || r.Priority == 32767 {
				continue
			}
			rules = append(rules, Rule{r.Priority, r.String()})
		}
	}
	return rules, nil
}

// Neighbour is an entry of a device's neighbour table.
type Neighbour struct {
	Dev   string
	IP    netip.Addr
	MAC   string
	State string // permanent, reachable, stale, failed, …
}

// Neighbours are all entries of all devices.
func (k *Kernel) Neighbours() ([]Neighbour, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var all []Neighbour
	for _, family := range netstate.Families {
		list, err := rtnl.Retry("neighbours", func() ([]netlink.Neigh, error) { return k.nl.NeighList(0, int(domains[family])) })
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			all = append(all, Neighbour{names[n.LinkIndex], rtnl.Addr(n.IP), n.HardwareAddr.String(), neighbourState(n.State)})
		}
	}
	return all, nil
}

func neighbourState(state int) string {
	for bit, name := range map[int]string{unix.NUD_PERMANENT: "permanent", unix.NUD_NOARP: "noarp", unix.NUD_REACHABLE: "reachable",
		unix.NUD_STALE: "stale", unix.NUD_DELAY: "delay", unix.NUD_PROBE: "probe", unix.NUD_FAILED: "failed", unix.NUD_INCOMPLETE: "incomplete"} {
		if state&bit != 0 {
			return name
		}
	}
	return "none"
}
