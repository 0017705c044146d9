package faults

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

var vxlanOnly = []string{"vxlan"}

// overlays have a device that wraps packets. Of these, userspace are those whose packets the agent moves
// itself; wireguard is one on kernels that have none.
var (
	overlays  = []string{"vxlan", "ipip", "udp", "wireguard"}
	userspace = []string{"udp", "wireguard"}
	ported    = []string{"vxlan", "udp", "wireguard"} // they wrap in UDP
	written   = []string{"vxlan", "host-gw", "ipip"}  // what the agent wrote goes on without it
)

var hostgwOnly = []string{"host-gw"}

// entryFaults injure one route, neighbour or FDB entry.
var entryFaults = []Fault{
	{
		Name:        "route-deleted",
		Finding:     "route-missing",
		Description: "the route to a peer is deleted",
		Inject:      script("ip route del {peer}"),
	},
	{
		Name:        "route-blackholed",
		Finding:     "route-altered",
		Description: "the route to a peer is replaced by a blackhole",
		Inject:      script("ip route replace blackhole {peer}"),
	},
	{
		Name:        "own-route-deleted",
		Finding:     "own-route",
		Description: "the kernel's route to the node's own pods is deleted",
		Inject:      script("ip route del {pods} dev cni0"),
	},
	{
		Name:        "own-route-blackholed",
		Finding:     "own-route",
		Description: "the route to the node's own pods is replaced by a blackhole",
		Inject:      script("ip route replace blackhole {pods} metric {kernel}"),
	},
	{
		Name:        "own-route-mtu",
		Finding:     "own-route",
		Description: "the route to the node's own pods gets an MTU of 1280",
		Inject:      script("ip route change {pods} dev cni0 proto kernel metric {kernel} mtu 1280"),
	},
	{
		Name:        "route-gateway",
		Finding:     "route-altered",
		Description: "the route to a peer leads through another gateway",
		Backends:    vxlanOnly,
		Inject:      script("ip route replace {peer} via 10.244.255.0 dev {dev} onlink"),
	},
	{
		Name:        "route-gateway-hostgw",
		Finding:     "route-altered",
		Description: "the route to a peer leads through another gateway",
		Backends:    hostgwOnly,
		Inject:      script("ip route replace {peer} via 192.168.33.253 dev {eth}"),
	},
	{
		Name:        "route-mtu",
		Finding:     "route-altered",
		Description: "the route to a peer gets an MTU of 600",
		Backends:    vxlanOnly,
		Inject:      script("ip route replace {peer} via {vtep} dev {dev} onlink proto 116 mtu 600"),
	},
	{
		Name:        "routes-flushed",
		Finding:     "route-missing",
		Description: "all routes of Twill's are deleted",
		Inject:      flushRoutes, // without a program: the README's first lab may have none
	},
	{
		Name:        "neighbour-deleted",
		Finding:     "neighbour-missing",
		Description: "a peer's ARP entry is deleted",
		Backends:    vxlanOnly,
		Inject:      script("ip neigh del {vtep} dev {dev}"),
	},
	{
		Name:        "neighbour-altered",
		Finding:     "neighbour-altered",
		Description: "a peer's ARP entry gets another MAC",
		Backends:    vxlanOnly,
		Inject:      script("ip neigh replace {vtep} lladdr 0e:00:00:00:00:66 dev {dev} nud permanent"),
	},
	{Name: "fdb-deleted", Finding: "fdb-missing", Description: "a peer's FDB entry is deleted", Backends: vxlanOnly,
		Inject: script("bridge fdb del {mac} dev {dev} dst {at} self")},
	{
		Name:        "fdb-altered",
		Finding:     "fdb-altered",
		Description: "a peer's FDB entry leads to another host",
		Backends:    vxlanOnly,
		Inject:      script("bridge fdb replace {mac} dev {dev} dst 192.168.33.250 self permanent"),
	},
	{
		Name:        "fdb-old-mac",
		Finding:     "leftover-entries",
		Description: "an FDB entry of a MAC that nobody has any more",
		Backends:    vxlanOnly,
		Inject:      script("bridge fdb append 0e:00:00:00:00:77 dev {dev} dst {at} self permanent"),
	},
	{
		Name:        "stale-peer",
		Finding:     "leftover-entries",
		Description: "route, ARP and FDB entries of a node that left long ago",
		Backends:    vxlanOnly,
		Inject: script("ip neigh replace 10.244.254.0 lladdr 0e:00:00:00:00:55 dev {dev} nud permanent",
			"bridge fdb append 0e:00:00:00:00:55 dev {dev} dst 192.168.33.250 self permanent",
			"ip route replace 10.244.254.0/24 via 10.244.254.0 dev {dev} onlink"),
	},
	{
		Name:        "stale-route",
		Finding:     "leftover-entries",
		Description: "a flannel agent's route to a node that left long ago",
		Backends:    hostgwOnly,
		Inject:      script("ip route replace 10.244.254.0/24 via 192.168.33.250 dev {eth}"),
	},
}

func flushRoutes(_ context.Context, v *Target) error {
	family := unix.AF_INET
	if v.Family == netstate.IPv6 {
		family = unix.AF_INET6
	}
	return v.Node.Links(func(nl *netlink.Handle) error {
		routes, err := nl.RouteListFiltered(family, &netlink.Route{Protocol: netstate.Protocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			if e := nl.RouteDel(&r); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, e)
			}
		}
		return err
	})
}
