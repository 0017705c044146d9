// Package subnet holds what the nodes of a cluster agree on: the network config (flannel's net-conf.json), the
// leases that nodes hold on pieces of it, and the Store contract that the Kubernetes API, etcd and a file keep.
package subnet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// Lease is what one node holds and what its peers must know of it.
type Lease struct {
	Node    string
	Backend string  // the backend's type, as in net-conf.json: "vxlan", "host-gw", …
	Stacks  []Stack // one per address family that the node has, IPv4 first

	// Earlier says that these are subnets of before, of which the node still has pods: see Snapshot.WithEarlier.
	Earlier bool `json:"-"`
}

// Stack is one address family's part of a Lease.
type Stack struct {
	Subnet   netip.Prefix    // the node's pods, masked; invalid before the lease is acquired
	Underlay netip.Addr      // where peers reach this node; advertised, not always an address of the host
	Data     json.RawMessage // what the backend publishes (flannel's backend-data); empty or null: nothing
}

// Stack returns the part of l for one address family, and whether there is one.
func (l Lease) Stack(f netstate.Family) (Stack, bool) {
	i := slices.IndexFunc(l.Stacks, func(s Stack) bool { return s.Family() == f })
	if i < 0 {
		return Stack{}, false
	}
	return l.Stacks[i], true
}

// Family returns the address family of s.
func (s Stack) Family() netstate.Family {
	if s.Underlay.IsValid() {
		return netstate.FamilyOf(s.Underlay)
	}
	return netstate.FamilyOf(s.Subnet.Addr())
}

// Equal reports whether two leases say the same; absent and null Data are the same.
func (l Lease) Equal(o Lease) bool {
	if l.Node != o.Node || l.Backend != o.Backend || len(l.Stacks) != len(o.Stacks) {
		return false
	}
	return len(l.Stacks) == 0 || &l.Stacks[0] == &o.Stacks[0] || slices.EqualFunc(l.Stacks, o.Stacks, Stack.equal)
}

func (s Stack) equal(o Stack) bool {
	return s.Subnet == o.Subnet && s.Underlay == o.Underlay &&
		(bytes.Equal(s.Data, o.Data) || bytes.Equal(compact(s.Data), compact(o.Data)))
}

// compact returns data without insignificant space, empty for null; what is not JSON stays as it is.
func compact(data json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return data
	}
	if b.String() == "null" {
		return nil
	}
	return b.Bytes()
}

// Snapshot is everything a Store knows at one moment. It is complete: a peer that is not in it has left.
type Snapshot struct {
	Local Lease   // this node's lease as it is published now
	Peers []Lease // the other nodes' leases, one a node, oldest first: of two for the same subnet the earlier one holds it
	Skips []Skip  // records that could not be read

	// NodeIPs are this node's addresses as the cluster knows them now, the preferred ones first. They are empty where
	// the store does not know any, or cannot read them: then those that were known before stay.
	NodeIPs []netip.Addr

	// Claims orders what several nodes publish and only one of them can have, a MAC address or a key: whoever has the
	// lower number was seen with it first. What is not disputed, or seen for the first time by this agent, is not in
	// it.
	Claims map[Claim]int `json:"-"`
}

// Leases returns this node's lease and then its peers', oldest first, and those of WithEarlier, with those of their subnets that
// lie in the networks of pods. Of two subnets that overlap the first one has the addresses that they share.
func (s Snapshot) Leases(network Config) []Lease {
	outside := func(stack Stack) bool {
		return !slices.ContainsFunc(network.Pools, func(p Pool) bool {
			return stack.Subnet.IsValid() && p.Network.Bits() <= stack.Subnet.Bits() && p.Network.Contains(stack.Subnet.Addr())
		})
	}
	all := append([]Lease{s.Local}, s.WithEarlier().Peers...)
	for i, l := range all {
		if slices.ContainsFunc(l.Stacks, outside) {
			all[i].Stacks = slices.DeleteFunc(slices.Clone(l.Stacks), outside)
		}
	}
	return all
}

// Claim is something that a node publishes and that only one node can have.
type Claim struct{ Node, What string }

// CheckNode returns an error unless name can be a node's: a DNS name, also with capitals and underscores, or an
// address, by which flannel's nodes are named. Stores that take names from peers check them: they are printed, a line
// each.
func CheckNode(name string) error {
	const most, letters = 253, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:"
	if name == "" || len(name) > most || strings.Trim(name, letters) != "" {
		return fmt.Errorf("node name %.60q: want at most %d letters, digits, dots, dashes, underscores and colons",
			name, most)
	}
	return nil
}
