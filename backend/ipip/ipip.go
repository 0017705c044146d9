// Package ipip is the backend that carries pods' IPv4 packets in IPv4 packets without any other header: one device, and
// one route per peer, whose gateway is the peer's underlay address. With DirectRouting, peers on the same L2 segment get a
// plain route instead.
package ipip

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// device is flannel's name of it.
const device = "flannel.ipip"

// overhead is what the outer IPv4 header adds to a packet, in bytes.
const overhead = 20

// Options are net-conf.json's Backend keys of flannel's ipip.
type Options struct {
	DirectRouting bool // no encapsulation to peers on the same L2 segment
}

// Backend is ipip.
type Backend struct {
	networks []netip.Prefix
	options  Options
}

// New makes the backend of net-conf.json's {"Type": "ipip", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := Backend{networks: networks}
	warnings, err := backend.ParseOptions(options, &b.options)
	for _, n := range networks {
		if err == nil && !n.Addr().Is4() {
			err = fmt.Errorf("net-conf Backend: ipip carries IPv4 only, and IPv6Network is %s: use vxlan, wireguard, udp or host-gw", n)
		}
	}
	return b, warnings, err
}

// MTU is what fits into one packet of the underlay.
func (b Backend) MTU(node backend.Node) int {
	u, _ := node.Underlay(true)
	return u.MTU - overhead
}

// Publish is nothing: flannel writes null.
func (Backend) Publish(backend.Node, bool) (json.RawMessage, error) { return nil, nil }

// Desired is this node's device and a route to every peer.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	peers, skips := backend.Peers(b.networks, snap)
	u, ok := node.Underlay(true)
	stack, leased := snap.Local.Stack(true)
	if !ok || !leased {
		return state, skips
	}
	state.Add(netstate.Tunnel{Name: device, Local: u.Local, MTU: b.MTU(node), Up: true, Marked: true},
		backend.TunnelAddr(device, stack.Subnet), backend.TunnelSysctl(device, true))
	for _, peer := range peers {
		if b.options.DirectRouting && u.Reaches(peer.Underlay) {
			state.Add(backend.DirectRoute(u, peer))
			continue
		}
		route := backend.TunnelRoute(device, peer)
		route.Via, route.Onlink = peer.Underlay, true
		state.Add(route)
	}
	return state, skips
}
