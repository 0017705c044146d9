package backend

import (
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/subnet"
)

// Peer is one address family of a peer's lease that passed the checks every backend needs.
type Peer struct {
	Node string
	subnet.Stack
}

// Peers are the stacks of the snapshot that this node can use, and the leases left out, each with its reason.
// A lease is left out whole when it uses another backend, and a stack of it when its subnet is not inside the
// network, when its underlay address is none, or when an older lease (or this node) holds one of both already: the snapshot's
// order decides, so every node decides alike. Families that this node does not have are passed over silently.
func Peers(networks []netip.Prefix, snap subnet.Snapshot) ([]Peer, []subnet.Skip) {
	n := len(snap.Peers) + 1
	peers := make([]Peer, 0, n)
	s := screen{networks: networks, subnets: make(map[netip.Prefix]string, n), underlays: make(map[netip.Addr]string, n)}
	for _, stack := range snap.Local.Stacks {
		s.hold(snap.Local.Node, stack)
	}
	for _, lease := range snap.Peers {
		if !speaks(lease.Backend, snap.Local.Backend) {
			s.skip(lease.Node, "it uses the backend %q, this node uses %q", lease.Backend, snap.Local.Backend)
			continue
		}
		for _, stack := range lease.Stacks {
			if _, ok := snap.Local.Stack(stack.Is4()); ok && s.admit(lease.Node, stack) {
				peers = append(peers, Peer{Node: lease.Node, Stack: stack})
			}
		}
	}
	return peers, s.skips
}

// Apart says whether nobody in snap has a subnet or an underlay address in common with a lease of more.
func Apart(snap subnet.Snapshot, more []subnet.Lease) bool {
	apart := func(held subnet.Lease) bool {
		for _, h := range held.Stacks {
			for _, lease := range more {
				for _, s := range lease.Stacks {
					if h.Underlay == s.Underlay || h.Subnet.Overlaps(s.Subnet) {
						return false
					}
				}
			}
		}
		return true
	}
	for _, held := range snap.Peers {
		if !apart(held) {
			return false
		}
	}
	return apart(snap.Local)
}

// speaks says whether a lease of that backend is one of ours. flannel v0.28 publishes no name for udp and alloc.
func speaks(theirs, ours string) bool {
	return theirs == ours || theirs == "" && (ours == "udp" || ours == "alloc")
}

// screen remembers who holds what.
type screen struct {
	networks  []netip.Prefix
	subnets   map[netip.Prefix]string
	underlays map[netip.Addr]string
	longest   int // bits of the longest held subnet
	skips     []subnet.Skip
}

func (s *screen) skip(node, format string, args ...any) bool {
	s.skips = append(s.skips, subnet.Skip{Node: node, Reason: fmt.Sprintf(format, args...)})
	return false
}

func (s *screen) admit(node string, stack subnet.Stack) bool {
	if !s.inNetworks(stack.Subnet) {
		return s.skip(node, "its subnet %s is outside the network %v", stack.Subnet, s.networks)
	}
	if !routable(stack.Underlay) {
		return s.skip(node, "its underlay address %s is not one that packets can be sent to", stack.Underlay)
	}
	if stack.Underlay.Is4() != stack.Subnet.Addr().Is4() {
		return s.skip(node, "its subnet %s and its underlay address %s are of different families", stack.Subnet, stack.Underlay)
	}
	if holder, ok := s.underlays[stack.Underlay]; ok {
		return s.skip(node, "its underlay address %s is %s's already", stack.Underlay, holder)
	}
	if subnet, holder, ok := s.overlaps(stack.Subnet); ok {
		return s.skip(node, "its subnet %s overlaps %s, which %s holds already", stack.Subnet, subnet, holder)
	}
	s.hold(node, stack)
	return true
}

// routable is false for what no host can have, and for the zero Addr of a record without an address.
func routable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

func (s *screen) hold(node string, stack subnet.Stack) {
	s.subnets[stack.Subnet], s.underlays[stack.Underlay] = node, node
	s.longest = max(s.longest, stack.Subnet.Bits())
}

func (s *screen) inNetworks(p netip.Prefix) bool {
	for _, n := range s.networks {
		if n.Bits() <= p.Bits() && n.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// overlaps finds a held subnet that shares addresses with p. The subnets of a cluster nearly always have one
// length: then only p itself can be held, and looking upwards finds it at once.
func (s *screen) overlaps(p netip.Prefix) (netip.Prefix, string, bool) {
	for bits := p.Bits(); bits > 0; bits-- {
		wider := netip.PrefixFrom(p.Addr(), bits).Masked()
		if holder, ok := s.subnets[wider]; ok {
			return wider, holder, true
		}
	}
	if s.longest > p.Bits() {
		for held, holder := range s.subnets {
			if held.Overlaps(p) {
				return held, holder, true
			}
		}
	}
	return netip.Prefix{}, "", false
}
