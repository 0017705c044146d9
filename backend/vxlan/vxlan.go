// Package vxlan is the backend that carries pods' packets in UDP: one VXLAN device per address family, and per
// peer a neighbour, an FDB entry and a route. With DirectRouting, peers on the same L2 segment get a plain
// route instead.
package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// What VXLAN adds to a packet, in bytes: outer IPv4 (20) or IPv6 (40), UDP (8), VXLAN (8), inner Ethernet (14).
// flannel subtracts 50 for both.
const overhead4, overhead6 = 50, 70

// Backend is vxlan.
type Backend struct {
	networks []netip.Prefix
	options  Options
	byPort   bool // the devices are named after the port: another backend has those of the VNI
}

// New makes the backend of net-conf.json's {"Type": "vxlan", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	o, warnings, err := parseOptions(options)
	if err == nil {
		err = o.fits(networks)
	}
	return Backend{networks: networks, options: o}, warnings, err
}

// Beside implements transition.Sibling: two VTEPs of one VNI need two names.
func (b Backend) Beside(other backend.Backend) backend.Backend {
	o, ok := other.(Backend)
	b.byPort = ok && o.options.VNI == b.options.VNI && !o.byPort
	return b
}

// device is flannel's name of the VTEP of one family, or that of a second one of its VNI.
func (b Backend) device(f netstate.Family) string {
	if b.byPort && f == netstate.IPv4 {
		return fmt.Sprintf("flannel-p%d", b.options.Port)
	}
	if b.byPort {
		return fmt.Sprintf("flannel6-p%d", b.options.Port)
	}
	if f == netstate.IPv4 {
		return fmt.Sprintf("flannel.%d", b.options.VNI)
	}
	return fmt.Sprintf("flannel-v6.%d", b.options.VNI)
}

// mtu is what fits into one packet of the underlay.
func (b Backend) mtu(u backend.Underlay) int {
	if b.options.MTU != 0 {
		u.MTU = b.options.MTU
	}
	return u.Inside(overhead4, overhead6)
}

// MTU is the smallest of the families' VTEPs.
func (b Backend) MTU(node backend.Node) int { return backend.InnerMTU(node.Underlays, b.mtu) }

// Fits refuses an MTU that is larger than an underlay's: the kernel makes no such VTEP.
func (b Backend) Fits(node backend.Node) error {
	for _, u := range node.Underlays {
		if b.options.MTU > u.MTU {
			return fmt.Errorf("net-conf Backend: MTU %d is larger than %s's %d: want at most %d, or 0 for the interface's",
				b.options.MTU, u.Dev, u.MTU, u.MTU)
		}
	}
	return nil
}

// Publish is the VNI, the VTEP's MAC address and the UDP port.
func (b Backend) Publish(node backend.Node, last subnet.Lease, f netstate.Family) (json.RawMessage, error) {
	return json.Marshal(data{b.options.VNI, b.vtepMAC(node, last, f).String(), b.options.Port})
}

// entries is how many objects lead to a peer: a neighbour, an FDB entry and a route.
const entries = 3

// Wrapped is a UDP datagram.
func (b Backend) Wrapped(netstate.Family) netstate.Transport {
	return netstate.Transport{Protocol: netstate.UDP, Port: uint16(b.options.Port)}
}

// Desired is this node's VTEPs and the path to every peer.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	peers, skips := backend.Peers(b.networks, node, snap)
	d := &desired{
		Backend: b,
		node:    node,
		local:   snap.Local,
		skips:   skips,
		state:   make(netstate.State, entries*len(peers)),
		claims:  backend.NewClaims(snap, b.isNamed),
	}
	for _, stack := range snap.Local.Stacks {
		if underlay, ok := node.Underlay(stack.Family()); ok {
			d.vtep(underlay, stack)
		}
	}
	d.each(peers)
	return d.state, d.skips
}

// desired is one call of Desired.
type desired struct {
	Backend
	node   backend.Node
	local  subnet.Lease
	state  netstate.State
	skips  []subnet.Skip
	claims *backend.Claims[vtep]
}

// vtep is a VTEP's MAC address; the families have a device each, so one MAC can be in both.
type vtep struct {
	family netstate.Family
	mac    netstate.MAC
}

// isNamed reports whether the MAC is the one that the node's name alone makes: no other node has a right to
// it. A node that flannel or a device gave another one has no such proof.
func (b Backend) isNamed(v vtep, node string) bool { return b.namedMAC(node, v.family) == v.mac }

func (d *desired) vtep(u backend.Underlay, stack subnet.Stack) {
	mac := d.vtepMAC(d.node, d.local, stack.Family())
	d.claims.Own(vtep{stack.Family(), mac}, d.node.Name)
	dev := d.device(stack.Family())
	d.state.Add(
		netstate.VXLAN{Name: dev, VNI: d.options.VNI, Port: d.options.Port, Dev: u.Dev, Local: u.Local, MTU: d.mtu(u),
			MAC: mac, Learning: d.options.Learning, GBP: d.options.GBP, Up: true, Marked: true},
		backend.TunnelAddr(dev, stack.Subnet),
		backend.TunnelSysctl(dev, stack.Family()),
	)
	switch c := d.options.TxChecksum; {
	case c == ChecksumOn:
		d.state.Add(netstate.Offload{Dev: dev, On: true})
	case c == ChecksumOff, c == ChecksumAuto && d.node.ChecksumsBroken[dev]:
		d.state.Add(netstate.Offload{Dev: dev})
	}
}

// way is a peer that is reached through its VTEP, and what its record says of it.
type way struct {
	backend.Peer
	data data
	vtep vtep
	err  error
}

func (w way) place() netip.AddrPort { return netip.AddrPortFrom(w.Underlay, 0) }

// each adds what leads to the peers: who has a MAC is known when all have been read.
func (d *desired) each(peers []backend.Peer) {
	ways := make([]way, 0, len(peers))
	for _, peer := range peers {
		underlay, ok := d.node.Underlay(peer.Family())
		switch {
		case !ok:
		case d.options.DirectRouting && underlay.Reaches(peer.Underlay):
			d.state.Add(backend.DirectRoute(underlay, peer, d.options.SpreadMetrics))
		default:
			said, mac, err := parseData(peer.Data)
			w := way{peer, said, vtep{peer.Family(), mac}, err}
			if said.VNI == d.options.VNI {
				d.claims.Enter(w.vtep, peer.Node, w.place())
			}
			ways = append(ways, w)
		}
	}
	for _, w := range ways {
		d.way(w)
	}
}

func (d *desired) way(w way) {
	switch holder, denied := d.claims.Holder(w.vtep, w.Node, w.place()); {
	case w.err != nil:
		d.skip(w, subnet.BackendData, "%v", w.err)
	case w.data.VNI != d.options.VNI:
		d.skip(w, subnet.DifferentOptions, "it uses VNI %d, this node uses %d", w.data.VNI, d.options.VNI)
	case w.data.Port != 0 && w.data.Port != d.options.Port:
		d.skip(w, subnet.DifferentOptions, "it uses UDP port %d, this node uses %d", w.data.Port, d.options.Port)
	case denied:
		d.skip(w, subnet.DuplicateMAC, "its VTEP MAC %s is %s's already", w.vtep.mac, holder)
	default:
		d.tunnel(w.Peer, w.vtep.mac)
	}
}

func (d *desired) skip(w way, code subnet.Code, format string, args ...any) {
	d.skips = append(d.skips, subnet.Skip{Node: w.Node, Code: code, Detail: fmt.Sprintf(format, args...)})
}

func (d *desired) tunnel(peer backend.Peer, mac netstate.MAC) {
	dev, vtep := d.device(peer.Family()), peer.Subnet.Addr()
	u, _ := d.node.Underlay(peer.Family())
	mtu := u.RouteMTU(peer, d.mtu(u), func(u backend.Underlay) int { return u.Inside(overhead4, overhead6) })
	d.state.Add(
		netstate.Neigh{Dev: dev, IP: vtep, MAC: mac},
		netstate.FDB{Dev: dev, MAC: mac, Dst: peer.Underlay},
		netstate.Route{Dst: peer.Subnet, Via: vtep, Dev: dev, Onlink: true, MTU: mtu, Protocol: netstate.Protocol,
			Metric: backend.RouteMetric(peer.Subnet, d.options.SpreadMetrics)},
	)
}

// ProbesChecksums implements backend.ChecksumProber.
func (b Backend) ProbesChecksums() bool { return b.options.TxChecksum == ChecksumAuto }

// Direct implements backend.Direct.
func (b Backend) Direct() bool { return b.options.DirectRouting }

// Strict implements backend.Strict.
func (b Backend) Strict() bool { return b.options.Strict }

// Accelerable implements backend.Accelerable.
func (b Backend) Accelerable() backend.FastPath {
	return backend.FastPath{On: b.options.FastPath, SkipMark: b.options.SkipMark}
}
