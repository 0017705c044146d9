package backend

import (
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Claimer is a Backend whose nodes publish something that leads packets to them, and that therefore only one
// of them can have.
type Claimer interface {
	Backend
	// Claims returns what of a peer's stack only one node can have: for most backends one thing, or nothing.
	Claims(subnet.Stack) []string
}

// Claims decides who has what only one node can have: a VTEP's MAC address, a public key. All are entered
// first, in the order of the snapshot; then the one that has it is known. It is the one of which sure says
// that it must be its own, else the one that this agent saw with it first (subnet.Snapshot.Claims), else the
// older node. A node that publishes the same thing at the same place as the one that has it is no rival: it
// is one machine with two records, as after it was renamed, and both subnets lead there.
type Claims[C What] struct {
	order map[subnet.Claim]int
	sure  func(what C, node string) bool
	held  map[C]claim
}

// What is something that only one node can have; its text is what a Claimer returns.
type What interface {
	comparable
	fmt.Stringer
}

// claim is who has something, and where.
type claim struct {
	node       string
	own        bool
	ipv4, ipv6 netip.AddrPort
}

// place is where the claim's holder has it in the family of a.
func (c *claim) place(a netip.AddrPort) *netip.AddrPort {
	if netstate.FamilyOf(a.Addr()) == netstate.IPv4 {
		return &c.ipv4
	}
	return &c.ipv6
}

// NewClaims makes Claims for the peers of a snapshot; sure is only asked where two nodes differ.
func NewClaims[C What](snap subnet.Snapshot, sure func(what C, node string) bool) *Claims[C] {
	return &Claims[C]{snap.Claims, sure, make(map[C]claim, len(snap.Peers)+1)}
}

// Own enters what this node has itself. No peer is where this node is.
func (c *Claims[C]) Own(what C, node string) { c.held[what] = claim{node: node, own: true} }

// Enter enters what a peer publishes.
func (c *Claims[C]) Enter(what C, node string, place netip.AddrPort) {
	held, ok := c.held[what]
	switch {
	case !ok:
		held = claim{node: node}
	case held.node == node:
	case held.own || *held.place(place) == place || !c.before(what, node, held.node):
		return
	default:
		held = claim{node: node}
	}
	*held.place(place) = place
	c.held[what] = held
}

// before reports whether node has it, and not the older holder.
func (c *Claims[C]) before(what C, node, holder string) bool {
	if sure := c.sure(what, node); sure != c.sure(what, holder) {
		return sure
	}
	first := c.order[subnet.Claim{Node: holder, What: what.String()}] // 0, which nothing is before, if it was never seen
	second, seen := c.order[subnet.Claim{Node: node, What: what.String()}]
	return seen && second < first
}

// Holder returns who has it instead of this peer; false: the peer has it, or is the one that has it by another name.
func (c *Claims[C]) Holder(what C, node string, place netip.AddrPort) (string, bool) {
	held := c.held[what]
	return held.node, held.own || held.node != node && *held.place(place) != place
}
