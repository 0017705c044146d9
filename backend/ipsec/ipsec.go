// Package ipsec is the backend that sends pods' packets through IPsec tunnels (ESP): flannel's options and
// connections, so that nodes of both understand each other. The policies that keep plain packets from
// leaving are kernel state and the reconciler's; Run drives strongSwan's charon, which exchanges the keys.
package ipsec

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// What ESP adds to a packet at most, in bytes, over IPv4 (flannel's figure) and IPv6.
const overhead4, overhead6 = 77, 97

// reqID is that of all security associations, as flannel has it: policies find theirs by it and the tunnel's ends.
const reqID = 11

// minPSK is the least length of the shared key, as flannel asks for.
const minPSK = 96

// Options are net-conf.json's Backend keys of flannel's ipsec.
type Options struct {
	PSK         string // shared by all nodes, at least 96 characters
	UDPEncap    bool   // ESP in UDP 4500 even where no NAT is seen
	ESPProposal string // in strongSwan's words
}

// Backend is ipsec.
type Backend struct {
	networks []netip.Prefix
	options  Options
}

// New makes the backend of net-conf.json's {"Type": "ipsec", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := Backend{networks: networks, options: Options{ESPProposal: "aes128gcm16-sha256-prfsha256-ecp256"}}
	warnings, err := backend.ParseOptions(options, &b.options)
	if n := len(b.options.PSK); err == nil && n < minPSK {
		err = fmt.Errorf(
			"net-conf Backend: the PSK has %d characters, want %d or more: dd if=/dev/urandom count=48 bs=1 status=none | xxd -p -c 48",
			n,
			minPSK,
		)
	}
	return b, warnings, err
}

// MTU is what fits into one packet of each family's underlay.
func (b Backend) MTU(node backend.Node) int {
	return backend.InnerMTU(node.Underlays, func(u backend.Underlay) int { return u.Inside(overhead4, overhead6) })
}

// Publish is nothing: flannel writes null.
func (Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// The priorities, in the order in which policies decide.
const (
	local   = netstate.PolicyPriority + iota // this node's own pods
	through                                  // a peer
	blocked                                  // everything else of the cluster's networks
)

// Desired is, for every peer, the policies that send packets through its tunnel, and a route, whose gateway
// only says by which interface: the tunnel's own packets have a way of their own. What goes to the cluster's
// networks and has no tunnel is blocked, so that no pod's packet ever leaves as it is.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	for _, stack := range snap.Local.Stacks {
		any := netip.PrefixFrom(unspecified(stack.Family()), 0)
		state.Add(netstate.Policy{Dir: netstate.Out, Src: any, Dst: stack.Subnet, Priority: local})
		for _, n := range b.networks {
			if netstate.FamilyOf(n.Addr()) == stack.Family() {
				state.Add(netstate.Policy{Dir: netstate.Out, Src: any, Dst: n, Priority: blocked, Block: true})
			}
		}
	}
	peers, skips := backend.Peers(b.networks, node, snap)
	for _, p := range peers {
		u, ok := node.Underlay(p.Family())
		own, leased := snap.Local.Stack(p.Family())
		if ok && leased {
			state.Add(policies(u.Local, own.Subnet, p)...)
			route := backend.DirectRoute(u, p, false)
			route.Onlink, route.Src = true, backend.Gateway(own.Subnet)
			state.Add(route)
		}
	}
	return state, skips
}

func unspecified(f netstate.Family) netip.Addr {
	if f == netstate.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// policies are one peer's. What comes from a node's own address to pods, or from pods to it, may come plain: a node of
// flannel sends it so. There is none about what pods send to the address that a peer announces: whose address that is
// nobody knows, and pods would lose the API server, say, to a tunnel that never comes up.
func policies(here netip.Addr, own netip.Prefix, p backend.Peer) []netstate.Object {
	out := netstate.Policy{
		Dir:      netstate.Out,
		Src:      own,
		Dst:      p.Subnet,
		Priority: through,
		From:     here,
		To:       p.Underlay,
		ReqID:    reqID,
	}
	in := netstate.Policy{
		Dir:      netstate.In,
		Src:      p.Subnet,
		Dst:      own,
		Priority: through,
		From:     p.Underlay,
		To:       here,
		ReqID:    reqID,
	}
	fwd := in
	fwd.Dir = netstate.Fwd
	hostOut := out
	hostOut.Src = netstate.Host(here)
	fromHost, hostIn := in, in
	fromHost.Src, fromHost.Optional = netstate.Host(p.Underlay), true
	hostIn.Dst, hostIn.Optional = netstate.Host(here), true
	fromHostFwd := fromHost
	fromHostFwd.Dir = netstate.Fwd
	return []netstate.Object{out, hostOut, in, hostIn, fromHost, fwd, fromHostFwd}
}
