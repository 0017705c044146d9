package backend

import (
	"net/netip"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// BaseConfig is what every node has whatever its backend.
type BaseConfig struct {
	Bridge    string // cni0; empty: others make the pods' bridge, and give it the gateway's address
	MTU       int    // of the pods, bytes
	Blackhole bool   // a blackhole route for the node's own subnet: addresses of no pod are not sent upstream
	// Filter makes the packets between pods of the bridge pass the rules for forwarded packets, by br_netfilter.
	Filter bool
}

// blackholeMetric lets the bridge's own route, of a lower metric, win as long as it stands.
const blackholeMetric = 4096

// Base is the bridge with the gateway addresses of the lease's subnets, the routes to them, the forwarding sysctls, and
// the pods' ports. Without a bridge it is the sysctls.
func Base(cfg BaseConfig, node Node, lease subnet.Lease) netstate.State {
	state := netstate.State{}
	for _, port := range node.Ports {
		if len(lease.Stacks) == 0 {
			break // there is no bridge
		}
		state.Add(port)
		if port.Locked {
			state.Add(netstate.BridgeFDB{Bridge: port.Bridge, MAC: port.Pod, Port: port.Name})
		}
	}
	for i, stack := range lease.Stacks {
		for _, s := range forwarding(node, stack.Family()) {
			state.Add(s)
		}
		if cfg.Filter {
			state.Add(bridgeFilter(stack.Family()))
		}
		if cfg.Blackhole {
			state.Add(
				netstate.Route{
					Dst:       stack.Subnet,
					Metric:    blackholeMetric,
					Blackhole: true,
					Protocol:  netstate.Protocol,
				},
			)
		}
		if cfg.Bridge == "" {
			continue
		}
		gateway := Gateway(stack.Subnet)
		address := netip.PrefixFrom(gateway, stack.Subnet.Bits())
		if i == 0 {
			state.Add(
				netstate.Bridge{
					Name:   cfg.Bridge,
					MTU:    cfg.MTU,
					MAC:    bridgeMAC(cfg.Bridge, node, gateway),
					Up:     true,
					Marked: true,
				},
			)
		}
		state.Add(
			netstate.Addr{
				Dev:    cfg.Bridge,
				Prefix: address,
				NoDAD:  stack.Family() == netstate.IPv6,
			},
			netstate.ConnectedRoute(cfg.Bridge, address),
		)
		if stack.Family() == netstate.IPv6 {
			mac := bridgeMAC(cfg.Bridge, node, Gateway(lease.Stacks[0].Subnet))
			state.Add(noDAD(cfg.Bridge), netstate.Addr{Dev: cfg.Bridge, Prefix: netstate.LinkLocal(mac)})
		}
	}
	return state
}

// noDAD has a bridge that was down ask for its pods' MAC addresses at once: the kernel asks from the link-local address
// (ndisc_send_ns, seen on 6.18), and looks for two seconds whether somebody else has that one. Without that address,
// which Base wants too, it never asks.
func noDAD(bridge string) netstate.Sysctl {
	return netstate.Sysctl{Name: "net/ipv6/conf/" + bridge + "/accept_dad", Value: "0"}
}

// Gateway is the address of the bridge in a node's subnet: the first after the subnet's own, as in subnet.env.
func Gateway(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// bridgeMAC keeps the address of a bridge that exists, because the pods on it know it; a new one is made of the
// gateway's address.
func bridgeMAC(bridge string, node Node, gateway netip.Addr) netstate.MAC {
	if mac := node.MACs[bridge]; mac.IsUnicast() {
		return mac
	}
	return netstate.BridgeMAC(gateway)
}

// bridgeFilter makes bridged packets of a family pass the rules for forwarded ones.
func bridgeFilter(f netstate.Family) netstate.Sysctl {
	if f == netstate.IPv6 {
		return netstate.Sysctl{Name: "net/bridge/bridge-nf-call-ip6tables", Value: "1"}
	}
	return netstate.Sysctl{Name: "net/bridge/bridge-nf-call-iptables", Value: "1"}
}

// forwarding is the sysctls of one family. A host that forwards IPv6 ignores router advertisements, and so
// loses the routes and addresses that came by one, unless accept_ra of the device is 2. What takes them goes on taking
// them, whether it is between the nodes or not.
func forwarding(node Node, f netstate.Family) []netstate.Sysctl {
	if f == netstate.IPv4 {
		return []netstate.Sysctl{{Name: "net/ipv4/ip_forward", Value: "1"}}
	}
	devs := node.LosesRA
	if u, ok := node.Underlay(f); ok && u.AcceptRA {
		devs = append([]string{u.Dev}, devs...)
	}
	sysctls := []netstate.Sysctl{{Name: "net/ipv6/conf/all/forwarding", Value: "1"}}
	for _, dev := range devs {
		sysctls = append(sysctls, netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/accept_ra", Value: "2"})
	}
	return sysctls
}
