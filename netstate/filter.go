package netstate

import (
	"fmt"
	"math/bits"
	"net/netip"
)

// FilterTable is the nftables table of each family that enforces network policies. All in it is ours.
const FilterTable = "twill-policy"

// JudgedMark is the bit of a packet's mark that rules set on what they have seen between two pods of a bridge. Rules about
// frames clear it where a frame comes in from a pod, and drop what goes on to another pod without it.
const JudgedMark = 1 << 28

// LogGroup is the NFLOG group that hears of the packets that rules of the FilterTable log. Each rule logs at most LogRate
// packets in a second, after the first LogBurst.
const LogGroup, LogRate, LogBurst = 116, 5, 10

// Denied is how many packets the rules of the FilterTable have denied for the sake of some policies.
type Denied struct {
	Family    string `json:"family"`    // as Family.String has it
	Direction string `json:"direction"` // ingress, or egress; empty: of both
	Policies  string `json:"policies"`  // separated by commas; empty: packets of addresses that are no known pod's, or frames
	Packets   uint64 `json:"packets"`
}

// SetType is what the elements of a Set are.
type SetType string

// The types, as nft names them.
const (
	Addresses  SetType = "addr"                // one address
	Ranges     SetType = "addr interval"       // disjoint ranges of addresses
	PortRanges SetType = "port interval"       // disjoint ranges of port numbers
	Selves     SetType = "addr . addr"         // twice the same address
	NamedPorts SetType = "addr . proto . port" // a port of an address
	Verdicts   SetType = "addr : verdict"      // a map from an address to the chain that judges it

	Devices     SetType = "ifname"             // a device; this one and the next two are for Ethernet
	IPv4Sources SetType = "ifname . ipv4_addr" // an address that comes from a device
	IPv6Sources SetType = "ifname . ipv6_addr"
)

// Set is a set, or a map to verdicts, of the FilterTable. Slot: family and name. Mark: the table's name. Cascade: its
// elements go with it.
type Set struct {
	Family Family
	Name   string
	Type   SetType
	Extra  string
}

// Key implements Object.
func (s Set) Key() Key { return Key{Kind: KindSet, Name: s.Name, Metric: s.Family.Bits()} }

func (s Set) String() string {
	return words("set", s.Family.nft(), s.Name, "type", string(s.Type), s.Extra)
}

// Filter is a chain of the FilterTable that others jump to. It is compared and written as a whole. Slot: family and
// name. Mark: the table's name. Cascade: none; the kernel refuses to delete one that something jumps to.
type Filter struct {
	Family Family
	Name   string
	Rules  string // one a line, in the grammar of netstate/filter/grammar
	Extra  string
}

// Key implements Object.
func (f Filter) Key() Key { return Key{Kind: KindFilter, Name: f.Name, Metric: f.Family.Bits()} }

func (f Filter) String() string {
	return words("filter", f.Family.nft(), f.Name, fmt.Sprintf("{%s}", f.Rules), f.Extra)
}

// Element is one element of a Set. Slot: set, device, family, prefix, protocol and port. Mark: the table's name. Cascade:
// none.
type Element struct {
	Set      string
	Dev      string       // Devices and sources only
	Prefix   netip.Prefix // a host's, but in Ranges; in PortRanges all addresses of the family, in Devices none
	Last     netip.Addr   // Ranges that are no prefix only: Prefix is the first address, this is the last one
	Protocol uint8        // IANA's number; NamedPorts only
	Port     uint16       // NamedPorts and PortRanges only
	LastPort uint16       // PortRanges only: Port is the first one
	Verdict  string       // Verdicts only: "return", or "goto" and the name of a Filter
	Extra    string
}

// Range returns the element of a set of Ranges from one address to another, which may be the same.
func Range(set string, first, last netip.Addr) Element {
	if p := netip.PrefixFrom(first, commonBits(first, last)); p == p.Masked() && LastAddr(p) == last {
		return Element{Set: set, Prefix: p}
	}
	return Element{Set: set, Prefix: Host(first), Last: last}
}

// Contains reports whether an address is in an element of Ranges.
func (e Element) Contains(a netip.Addr) bool {
	if !e.Last.IsValid() {
		return e.Prefix.Contains(a)
	}
	return a.BitLen() == e.Last.BitLen() && !a.Less(e.Prefix.Addr()) && !e.Last.Less(a)
}

// commonBits returns how many bits two addresses begin with in common.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return 8 * len(x)
}

// LastAddr returns the last address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(last)
	return addr
}

// Key implements Object.
func (e Element) Key() Key {
	return Key{Kind: KindElement, Name: words(e.Set, e.Dev), Prefix: e.Prefix, Metric: int(e.Protocol)<<16 | int(e.Port)}
}

func (e Element) String() string {
	last, port := "", ""
	switch {
	case e.Protocol != 0:
		port = fmt.Sprintf("proto %d port %d", e.Protocol, e.Port)
	case e.LastPort != 0:
		port = fmt.Sprintf("port %d-%d", e.Port, e.LastPort)
	case e.Last.IsValid():
		last = "to " + e.Last.String()
	}
	return words("element", e.Set, e.Dev, match("", e.Prefix), last, port, prefixed(": ", e.Verdict), e.Extra)
}

// Hook is a base chain of the FilterTable, through which all forwarded packets of a family go, or all that are for the node
// itself; for Ethernet all frames that come in through ports of bridges, or all that go on through another port, once the
// hooks of packets have seen what is in them. Slot: family and place. Mark: the table's name. Cascade: none.
type Hook struct {
	Family Family
	Local  bool   // the packets for the node itself; not for Ethernet
	Onward bool   // the frames that go on through another port; for Ethernet only
	Rules  string // one a line, in the grammar of netstate/filter/grammar
	// Extra says what stands in the table that no object describes. Then nothing else of the family is observed, and a
	// change of the Hook makes the whole table again.
	Extra string
}

// Key implements Object.
func (h Hook) Key() Key { return Key{Kind: KindHook, Name: h.Name(), Metric: h.Family.Bits()} }

// Name returns the name of the chain, which is nftables' of the place where it hangs.
func (h Hook) Name() string {
	switch {
	case h.Family == Ethernet && !h.Onward:
		return "prerouting"
	case h.Local:
		return "input"
	}
	return "forward"
}

func (h Hook) String() string {
	return words("hook", h.Family.nft(), h.Name(), fmt.Sprintf("{%s}", h.Rules), h.Extra)
}
