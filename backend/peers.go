package backend

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Peer is one address family of a peer's lease that passed the checks every backend needs.
type Peer struct {
	Node    string
	Earlier bool // the subnet is one that the node had before: see subnet.Lease
	subnet.Stack
}

// Peers returns the stacks of the snapshot that node can use, and the leases left out, each with its reason.
// A lease is left out whole when it uses another backend, and a stack of it when its subnet is not inside
// the networks, when packets cannot be sent to its underlay address, or when an older lease (or this node)
// holds a part of its subnet: the snapshot's order decides, so every node decides alike. Two peers may have
// one underlay address: a machine that was renamed has two records for a while, and machines behind one NAT
// share its address. Families that this node does not have are passed over silently.
func Peers(networks []netip.Prefix, node Node, snap subnet.Snapshot) ([]Peer, []subnet.Skip) {
	peers := make([]Peer, 0, len(snap.Peers)+1)
	s := newScreen(networks, node, snap)
	for _, stack := range snap.Local.Stacks {
		s.held.add(snap.Local.Node, stack.Subnet)
	}
	for _, lease := range snap.Peers {
		s.earlier = lease.Earlier
		if lease.Earlier && lease.Node == snap.Local.Node {
			s.hold(lease)
			continue
		}
		if !speaks(lease.Backend, snap.Local.Backend) {
			s.skip(
				lease.Node,
				subnet.OtherBackend,
				"it uses the backend %.80q, this node uses %q",
				lease.Backend,
				snap.Local.Backend,
			)
			continue
		}
		for _, stack := range lease.Stacks {
			if _, ok := snap.Local.Stack(stack.Family()); ok && s.admit(lease.Node, stack) {
				peers = append(peers, Peer{Node: lease.Node, Earlier: lease.Earlier, Stack: stack})
			}
		}
	}
	return peers, s.skips
}

// speaks reports whether a lease of that backend is one of ours. flannel v0.28 publishes no name for udp and alloc.
func speaks(theirs, ours string) bool {
	return theirs == ours || theirs == "" && (ours == "udp" || ours == "alloc")
}

// screen checks one stack after the other.
type screen struct {
	networks []netip.Prefix
	node     Node
	held     holdings
	skips    []subnet.Skip
	earlier  bool // what is left out is a subnet of before, of which nobody needs to know
}

func newScreen(networks []netip.Prefix, node Node, snap subnet.Snapshot) *screen {
	return &screen{networks: networks, node: node, held: newHoldings(snap)}
}

func (s *screen) skip(node string, code subnet.Code, format string, args ...any) bool {
	if s.earlier {
		return false
	}
	s.skips = append(s.skips, subnet.Skip{Node: node, Code: code, Detail: fmt.Sprintf(format, args...)})
	return false
}

// hold keeps the subnets of a lease that nobody else holds for its node.
func (s *screen) hold(lease subnet.Lease) {
	for _, stack := range lease.Stacks {
		if _, _, held := s.held.overlap(stack.Subnet); !held {
			s.held.add(lease.Node, stack.Subnet)
		}
	}
}

func (s *screen) admit(node string, stack subnet.Stack) bool {
	underlay, _ := s.node.Underlay(netstate.FamilyOf(stack.Underlay))
	if !s.inNetworks(stack.Subnet) {
		return s.skip(
			node,
			subnet.OutsideNetwork,
			"its subnet %s is outside the network %v",
			stack.Subnet,
			s.networks,
		)
	}
	if !underlay.routable(stack.Underlay) || stack.Subnet.Contains(stack.Underlay) {
		return s.skip(
			node,
			subnet.Unroutable,
			"its underlay address %s is not one that packets can be sent to",
			stack.Underlay,
		)
	}
	if stack.Underlay == underlay.Local {
		return s.skip(node, subnet.OwnAddress, "its underlay address %s is this node's own", stack.Underlay)
	}
	if netstate.FamilyOf(stack.Underlay) != netstate.FamilyOf(stack.Subnet.Addr()) {
		return s.skip(
			node,
			subnet.MixedFamilies,
			"its subnet %s and its underlay address %s are of different families",
			stack.Subnet,
			stack.Underlay,
		)
	}
	for _, n := range s.node.Networks {
		if n.Used && !n.Late && n.In(stack.Subnet) {
			return s.skip(node, subnet.LocalNetwork, "its subnet %s contains %s, %s", stack.Subnet, n.Prefix, n.What)
		}
	}
	if held, holder, ok := s.held.overlap(stack.Subnet); ok {
		return s.skip(
			node,
			subnet.DuplicateSubnet,
			"its subnet %s overlaps %s, which %s holds already",
			stack.Subnet,
			held,
			holder,
		)
	}
	s.held.add(node, stack.Subnet)
	return true
}

func (s *screen) inNetworks(p netip.Prefix) bool {
	for _, n := range s.networks {
		if n.Bits() <= p.Bits() && n.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// reserved are the IPv4 addresses that no host has: "this network" (RFC 791), and what was never given to
// anybody (RFC 1112), the limited broadcast address among it.
var reserved = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

// routable reports whether packets can be sent to one host with the address a. A link-local address alone is
// none: it means nothing without the name of an interface. Of the machine's links neither the first nor the last
// address is a host's: the kernel takes neither for a gateway, and sends what goes to the last one to everybody there.
func (u Underlay) routable(a netip.Addr) bool {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		return false
	}
	if !a.Is4() {
		return !a.IsLinkLocalUnicast()
	}
	if slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return false
	}
	toward, _ := u.Toward(a)
	return !slices.ContainsFunc(toward.OnLink, func(link netip.Prefix) bool {
		return link.Bits() < 31 && link.Contains(a) && (a == link.Masked().Addr() || a == last(link))
	})
}

// last is the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(bytes)
}
