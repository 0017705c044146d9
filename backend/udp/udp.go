// Package udp is the backend that carries pods' packets in UDP datagrams, one in each, without any other header: what
// flannel's udp does in C, here in Go for every architecture. The reconciler makes a TUN device and routes into it; Run
// moves the packets.
package udp

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Device is the TUN device's name, as flannel has it.
const Device = "flannel0"

// What an outer header adds to a packet, in bytes: IPv4 (20) or IPv6 (40), UDP (8).
const overhead4, overhead6 = 28, 48

// Options are net-conf.json's Backend keys of flannel's udp.
type Options struct {
	Port   int  // UDP, of all nodes; 8285
	Strict bool // not flannel's: see backend.Strict
}

// Backend is udp.
type Backend struct {
	networks []netip.Prefix
	options  Options
}

// New makes the backend of net-conf.json's {"Type": "udp", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := Backend{networks, Options{Port: 8285}}
	warnings, err := backend.ParseOptions(options, &b.options)
	if p := b.options.Port; err == nil && (p < 1 || p > 65535) {
		err = fmt.Errorf("net-conf Backend: Port %d: want 1 to 65535", p)
	}
	return b, warnings, err
}

// Strict implements backend.Strict.
func (b Backend) Strict() bool { return b.options.Strict }

// MTU is what fits into one datagram of each family's underlay.
func (b Backend) MTU(node backend.Node) int {
	return backend.InnerMTU(node.Underlays, inside)
}

func inside(u backend.Underlay) int { return u.Inside(overhead4, overhead6) }

// Publish is nothing: flannel writes null.
func (b Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// Wrapped is a UDP datagram.
func (b Backend) Wrapped(netstate.Family) netstate.Transport {
	return netstate.Transport{Protocol: netstate.UDP, Port: uint16(b.options.Port)}
}

// Desired is the device, and a route into it for every peer.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	for _, stack := range snap.Local.Stacks {
		if _, ok := node.Underlay(stack.Family()); ok {
			state.Add(netstate.Tun{Name: Device, MTU: b.MTU(node), Up: true, Marked: true},
				backend.TunnelAddr(Device, stack.Subnet), backend.TunnelSysctl(Device, stack.Family()))
		}
	}
	peers, skips := backend.Peers(b.networks, node, snap)
	for _, peer := range peers {
		if u, ok := node.Underlay(peer.Family()); ok {
			state.Add(backend.TunnelRoute(Device, peer, u.RouteMTU(peer, b.MTU(node), inside)))
		}
	}
	return state, skips
}
