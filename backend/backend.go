// Package backend turns leases into the kernel state that should exist. A Backend is pure: the same Node and
// Snapshot give the same State, on any machine.
package backend

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Backend is one way to carry packets between nodes.
type Backend interface {
	// MTU is the largest packet, in bytes, that a pod of this node may send.
	MTU(Node) int
	// Publish returns what peers must know of this node for one address family, nil for nothing. last is what it published
	// before, zero if nothing.
	Publish(node Node, last subnet.Lease, f netstate.Family) (json.RawMessage, error)
	// Desired is the path to every peer that can be reached, and the peers that cannot.
	Desired(Node, subnet.Snapshot) (netstate.State, []subnet.Skip)
}

// Exposed is a Backend that takes packets of peers by their form alone, without a secret.
type Exposed interface {
	// Wrapped is the form of a family's packets between nodes.
	Wrapped(f netstate.Family) netstate.Transport
}

// Strict is a Backend that can keep pods' packets inside the overlay, whatever routes there are: none leaves plain, and none
// that comes plain is from a pod.
type Strict interface {
	Strict() bool
}

// CheckStrict returns an error if a backend is asked to keep inside of the overlay what it sends plain by design.
func CheckStrict(strict, plain bool) error {
	if strict && plain {
		return errors.New("net-conf Backend: Strict true and DirectRouting true exclude each other: want one of them, " +
			"since DirectRouting sends pods' packets without the overlay")
	}
	return nil
}

// ChecksumProber is a Backend that may want to know whether packets arrive broken whose checksums its devices leave to
// the NIC. The agent probes that, and says it in Node.ChecksumsBroken.
type ChecksumProber interface {
	ProbesChecksums() bool
}

// Fitter is a Backend that may be told what a machine cannot carry.
type Fitter interface {
	// Fits returns what the node cannot carry, and what would be right; nil: it can carry all.
	Fits(Node) error
}

// Node is what a backend may know of the machine that it runs on.
type Node struct {
	Name      string
	Underlays []Underlay              // one per address family of the config, IPv4 first
	Networks  []Network               // what lies in the networks of pods and is no pod's
	MACs      map[string]netstate.MAC // of the owned devices that exist, by name
	Ports     []netstate.Port         // of this node's pods, as the plugin made them
	PortMTUs  map[int]int             // how many ports the pods' bridge has, by their MTUs in bytes
	WireGuard bool                    // the kernel has devices of this kind
	// LosesRA are the devices of others that IPv6 router advertisements configure until the host forwards packets.
	LosesRA []string
	// ChecksumsBroken are the devices whose packets were found to arrive broken if the NIC computes their checksums.
	ChecksumsBroken map[string]bool

	// What only the fast path needs; empty where nobody wants one.
	FastPathOff  string            // why packets cannot take it on this node
	ChecksumsOff map[string]bool   // the VXLAN devices that compute the checksums of their packets
	Beside       map[string]string // why packets of pods' ports may not take it, by the ports' names
	Queued       map[string]bool   // the owned devices and ports whose packets wait in a queueing discipline
}

// SmallerPorts returns how many ports of the pods' bridge have an MTU below that many bytes.
func (n Node) SmallerPorts(mtu int) (ports int) {
	for has, count := range n.PortMTUs {
		if has < mtu {
			ports += count
		}
	}
	return ports
}

// Network is an address of this machine, or a network that it is on, in the networks of pods.
type Network struct {
	subnet.Foreign
	Dev  string // through which it is reached, or whose address it is
	Used bool   // Dev is an underlay, has a default route or a carrier, or packets for pods would go there without one
	Late bool   // pods' packets went there before it came, and go on
}

// Underlay is the interface that carries one address family between nodes.
type Underlay struct {
	Dev     string
	Local   netip.Addr     // an address of Dev
	First   netip.Addr     // what Local was at first, which it becomes again if it is back
	Passing bool           // Dev may not have Local for good
	Public  netip.Addr     // what is advertised to peers; Local unless told otherwise
	MTU     int            // of Dev, bytes
	OnLink  []netip.Prefix // what is reached through Dev without a gateway
	// Narrow has the MTUs of routes that carry less than MTU, whatever device they leave through, and of all inside of
	// these; nil if there are none.
	Narrow   map[netip.Prefix]int
	AcceptRA bool   // IPv6 router advertisements configure Dev
	By       string // the rule that chose it, as errors name it
	Beside   []Link // the machine's other devices, in the order of their names
}

// Link is a device of the machine, and what is reached through it without a gateway.
type Link struct {
	Dev    string
	MTU    int // bytes
	OnLink []netip.Prefix
}

// Family returns the address family that u carries.
func (u Underlay) Family() netstate.Family { return netstate.FamilyOf(u.Local) }

// Underlay returns the underlay of one address family, and reports whether there is one.
func (n Node) Underlay(f netstate.Family) (Underlay, bool) {
	for _, u := range n.Underlays {
		if u.Family() == f {
			return u, true
		}
	}
	return Underlay{}, false
}

// Reaches reports whether a is on u's own link.
func (u Underlay) Reaches(a netip.Addr) bool { return contains(u.OnLink, a) }

// Toward returns u with the device that has a on its link: u's own, or else another one of the machine. It reports whether there
// is one.
func (u Underlay) Toward(a netip.Addr) (Underlay, bool) {
	if u.Reaches(a) {
		return u, true
	}
	for _, l := range u.Beside {
		if contains(l.OnLink, a) {
			u.Dev, u.MTU, u.OnLink = l.Dev, l.MTU, l.OnLink
			return u, true
		}
	}
	return u, false
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}
