// Package storetest is the contract of subnet.Store as a test suite: every Store passes it, the real thing
// against its real server.
package storetest

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/subnet"
)

// Harness is one cluster: a store's server (API server, etcd, file) and what happens to it behind the agents'
// backs. Its methods are called by the test's goroutine only, and end the test when they cannot do their work. A
// lease in their arguments has its subnets, except in Store.
type Harness interface {
	// Store is what an agent that starts on want.Node opens. The first call for a node makes the node exist,
	// with the address families of want.Stacks (a Node object with a podCIDR of each pool); more calls are
	// restarts of the agent, or, when the node left, a node that comes back. The Store ends with the test.
	Store(t *testing.T, want subnet.Lease) subnet.Store
	// Configure changes the pools of the network config, for each Store that is opened from now on.
	Configure(t *testing.T, pools []subnet.Pool)
	// Leave removes the node and all that it published, as an operator does with a machine that is gone.
	Leave(t *testing.T, l subnet.Lease)
	// Delete removes what the node published, by mistake: the node itself stays.
	Delete(t *testing.T, l subnet.Lease)
	// Alter overwrites what the node published with something that can be read but is not right.
	Alter(t *testing.T, l subnet.Lease)
	// Damage makes what the node published unreadable, and returns the name that its Skip must have.
	Damage(t *testing.T, l subnet.Lease) string
}

// Outager is a Harness that can make its store unreachable for all agents while during runs.
type Outager interface {
	Outage(t *testing.T, during func())
}

// New makes the Harness of a new, empty cluster, whose nodes get their subnets from pools: one pool per address
// family, IPv4 first, each with 32 subnets. What it starts ends with the test.
type New func(t *testing.T, pools []subnet.Pool) Harness

// families are the kinds of clusters on which the suite runs.
var families = []struct {
	name  string
	pools []subnet.Pool
}{
	{"ipv4", []subnet.Pool{v4}},
	{"ipv6", []subnet.Pool{v6}},
	{"dual", []subnet.Pool{v4, v6}},
}

// The pools are small, so that many nodes at once collide.
var (
	v4 = subnet.Pool{
		Network: netip.MustParsePrefix("10.244.0.0/19"), SubnetLen: 24,
		Min: netip.MustParseAddr("10.244.0.0"), Max: netip.MustParseAddr("10.244.31.0"),
	}
	v6 = subnet.Pool{
		Network: netip.MustParsePrefix("fd00:10:244::/59"), SubnetLen: 64,
		Min: netip.MustParseAddr("fd00:10:244::"), Max: netip.MustParseAddr("fd00:10:244:1f::"),
	}
)

// Run holds the contract against the store of newHarness, on IPv4, IPv6 and dual-stack clusters.
func Run(t *testing.T, newHarness New) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					c.run(cluster{t: t, harness: newHarness(t, f.pools), pools: f.pools})
				})
			}
		})
	}
}
