// Package ipip is the backend that carries pods' packets in IP packets of the same family without any other header: one
// device per family, and one route per peer, which names the peer's underlay address. With DirectRouting,
// peers on the same L2 segment get a plain route instead.
package ipip

import (
	"encoding/json"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// The devices. flannel has the first one only.
const device4, device6 = "flannel.ipip", "flannel-v6.ipip"

// What the outer header adds to a packet, in bytes.
const overhead4, overhead6 = 20, 40

// Options are net-conf.json's Backend keys of flannel's ipip.
type Options struct {
	DirectRouting bool // no encapsulation to peers on the same L2 segment
	Strict        bool // not flannel's: see backend.Strict
	SpreadMetrics bool // not flannel's: see backend.RouteMetric
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
	if err == nil {
		err = backend.CheckStrict(b.options.Strict, b.options.DirectRouting)
	}
	return b, warnings, err
}

// Strict implements backend.Strict.
func (b Backend) Strict() bool { return b.options.Strict }

// MTU is what fits into one packet of each family's underlay.
func (b Backend) MTU(node backend.Node) int { return backend.InnerMTU(node.Underlays, inside) }

func inside(u backend.Underlay) int { return u.Inside(overhead4, overhead6) }

// Publish is nothing: flannel writes null.
func (Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// Wrapped is an IP packet in an IP packet.
func (Backend) Wrapped(f netstate.Family) netstate.Transport {
	if f == netstate.IPv4 {
		return netstate.Transport{Protocol: netstate.IPv4InIP}
	}
	return netstate.Transport{Protocol: netstate.IPv6InIP}
}

// Desired is this node's devices and a route to every peer.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	for _, stack := range snap.Local.Stacks {
		if u, ok := node.Underlay(stack.Family()); ok {
			d := tunnel(u)
			state.Add(d, backend.TunnelAddr(d.Name, stack.Subnet), backend.TunnelSysctl(d.Name, stack.Family()))
		}
	}
	peers, skips := backend.Peers(b.networks, node, snap)
	for _, peer := range peers {
		if u, ok := node.Underlay(peer.Family()); ok {
			state.Add(b.route(u, peer))
		}
	}
	return state, skips
}

// tunnel is the device of u's family.
func tunnel(u backend.Underlay) netstate.Tunnel {
	if u.Family() == netstate.IPv4 {
		return netstate.Tunnel{Name: device4, Local: u.Local, MTU: inside(u), Up: true, Marked: true}
	}
	return netstate.Tunnel{Name: device6, External: true, MTU: inside(u), Up: true, Marked: true}
}

// route leads to a peer's pods. The outer destination is the gateway (IPv4), or is said beside the outer source (IPv6).
func (b Backend) route(u backend.Underlay, peer backend.Peer) netstate.Route {
	if b.options.DirectRouting && u.Reaches(peer.Underlay) {
		return backend.DirectRoute(u, peer, b.options.SpreadMetrics)
	}
	d := tunnel(u)
	r := backend.TunnelRoute(d.Name, peer, u.RouteMTU(peer, d.MTU, inside))
	r.Via, r.Onlink, r.Metric = peer.Underlay, !d.External, backend.RouteMetric(peer.Subnet, b.options.SpreadMetrics)
	if d.External {
		r.Outer = u.Local
	}
	return r
}

// Direct implements backend.Direct.
func (b Backend) Direct() bool { return b.options.DirectRouting }
