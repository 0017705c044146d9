// Package hostgw is the backend that writes one route per peer through the peer's own address: no
// encapsulation, the full MTU, but all nodes must share an L2 segment.
package hostgw

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Backend is host-gw.
type Backend struct {
	networks []netip.Prefix
	options  Options
}

// Options are not flannel's: its host-gw has none.
type Options struct {
	FastPath bool   // packets take the fast path
	SkipMark uint32 // see backend.FastPath

	SpreadMetrics bool // see backend.RouteMetric
	Strict        bool // refused
}

// New makes the backend of net-conf.json's {"Type": "host-gw", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := Backend{networks: networks}
	warnings, err := backend.ParseOptions(options, &b.options)
	if err == nil && b.options.Strict {
		err = errors.New("net-conf Backend: Strict true: host-gw sends pods' packets plain, want another backend or no Strict")
	}
	return b, warnings, err
}

// MTU is the underlay's: the smallest, if there are two.
func (Backend) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) }

// Publish is nothing: flannel writes null.
func (Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// Desired is one route per peer, through the device that has the peer's address on its link: while nodes get another interface
// for their traffic one by one, that is not always the underlay.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	peers, skips := backend.Peers(b.networks, node, snap)
	for _, peer := range peers {
		underlay, ok := node.Underlay(peer.Family())
		if !ok {
			continue
		}
		if toward, ok := underlay.Toward(peer.Underlay); ok {
			state.Add(backend.DirectRoute(toward, peer, b.options.SpreadMetrics))
			continue
		}
		skips = append(skips, subnet.Skip{Node: peer.Node, Code: subnet.OffLink, Detail: fmt.Sprintf(
			"its underlay address %s is not on the same L2 segment as %s (%v), which host-gw needs: use the vxlan backend",
			peer.Underlay,
			underlay.Dev,
			underlay.OnLink,
		)})
	}
	return state, skips
}

// Direct implements backend.Direct.
func (Backend) Direct() bool { return true }

// Accelerable implements backend.Accelerable.
func (b Backend) Accelerable() backend.FastPath {
	return backend.FastPath{On: b.options.FastPath, SkipMark: b.options.SkipMark}
}
