// Package alloc is the backend that leases subnets and lets someone else carry packets between them: a cloud's
// routing table, a router that reads the leases.
package alloc

import (
	"encoding/json"
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Backend is alloc. It has no options.
type Backend struct{ networks []netip.Prefix }

// New makes the backend of net-conf.json's {"Type": "alloc"}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	warnings, err := backend.ParseOptions(options, &struct{}{})
	return Backend{networks}, warnings, err
}

// MTU is the underlay's: the smallest, if there are two.
func (Backend) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) }

// Publish is nothing: flannel writes null.
func (Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// Desired is nothing; leases that contradict each other are reported all the same.
func (b Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	_, skips := backend.Peers(b.networks, node, snap)
	return netstate.State{}, skips
}

// ExternalRoutes implements backend.ExternalRoutes.
func (Backend) ExternalRoutes() {}
