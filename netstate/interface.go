package netstate

import (
	"math/bits"
	"net/netip"
	"slices"
)

// Interface is a fact about the machine, not state that Twill wants: what an underlay can be chosen from.
type Interface struct {
	Name     string
	MTU      int
	MAC      MAC
	Up       bool
	Ethernet bool           // its frames begin with an Ethernet header
	VRF      string         // which it is in
	Owned    bool           // one of Twill's own devices, or a port of one: never an underlay
	AcceptRA bool           // IPv6 router advertisements may configure it
	LosesRA  bool           // and do so until the host forwards IPv6
	Addrs    []netip.Prefix // with host bits, without link-local addresses, those that last longest first
	Passing  []netip.Addr   // of Addrs, the deprecated, temporary and secondary ones
	OnLink   []netip.Prefix // reached without a gateway, masked
	Ways     []Way          // what is reached through it, also behind gateways
	Port     Port           // how the plugin made it, if it is a pod's; zero if it is not
	Master   string         // the bridge, VRF or bond that it is in
	// ChecksumsOff says that a VXLAN device does not leave the checksums of its packets to the NIC.
	ChecksumsOff bool
	Queued       bool           // packets that it sends wait in a queueing discipline
	Beside       string         // of a pod's port: what of somebody else's sees the packets that it sends, where the fast path would pass by it
	Default      []Family       // of whose preferred default route it is the device
	Gateways     []netip.Addr   // the routers that default routes through it lead to
	Running      bool           // it has a carrier
	Routed       []netip.Prefix // where routes of Twill's lead through it
}

// Way is where an interface leads, and the MTU in bytes of that route, 0 if it is the interface's.
type Way struct {
	Dst netip.Prefix
	MTU int
}

// Has reports whether a is one of i's addresses.
func (i Interface) Has(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Keeps reports whether a is an address that i probably has for good, and no other machine at times: neither a passing
// one nor one that is alone in its subnet.
func (i Interface) Keeps(a netip.Addr) bool {
	return !slices.Contains(i.Passing, a) &&
		slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == a && !p.IsSingleIP() })
}

// NeighState is the state of an entry of a neighbour table: one of the kernel's NUD_ bits, 0 for none.
type NeighState uint8

// The states that are told apart by what they mean for packets.
const (
	NeighFailed    NeighState = 0x20
	NeighPermanent NeighState = 0x80
)

// neighStates are the names of the bits, from the lowest on.
var neighStates = [...]string{"incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent"}

// String returns the name of the highest bit, as iproute2 prints it in capitals.
func (s NeighState) String() string {
	if s == 0 {
		return "none"
	}
	return neighStates[bits.Len8(uint8(s))-1]
}
