package backend

import (
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// TunnelSysctl is what an overlay device needs of the kernel: a loose reverse path check, because a peer's own address
// arrives through the device while the route back to it is the underlay's; and no IPv6 configuration from pods' router
// advertisements.
func TunnelSysctl(dev string, f netstate.Family) netstate.Sysctl {
	if f == netstate.IPv4 {
		return netstate.Sysctl{Name: "net/ipv4/conf/" + dev + "/rp_filter", Value: "2"}
	}
	return netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/accept_ra", Value: "0"}
}

// TunnelRoute leads to a peer's pods through a device that finds the peer by itself; mtu as of Underlay.RouteMTU.
func TunnelRoute(dev string, peer Peer, mtu int) netstate.Route {
	return netstate.Route{
		Dst:      peer.Subnet,
		Dev:      dev,
		Metric:   netstate.DefaultMetric(peer.Subnet.Addr()),
		MTU:      mtu,
		Protocol: netstate.Protocol,
	}
}

// TunnelAddr is the address that the node itself has towards remote pods: its subnet's first, as flannel has it. Nobody
// else can have it, so nobody is asked.
func TunnelAddr(dev string, subnet netip.Prefix) netstate.Addr {
	address := netstate.Host(subnet.Masked().Addr())
	return netstate.Addr{Dev: dev, Prefix: address, NoDAD: address.Addr().Is6()}
}
