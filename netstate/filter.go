package netstate

import (
	"fmt"
	"net/netip"
)

// FilterTable is the nftables table of each family that enforces network policies. All in it is ours.
const FilterTable = "twill-policy"

// LogGroup is the NFLOG group that hears of the packets that rules of the FilterTable log. Each rule logs at most LogRate
// packets in a second, after the first LogBurst.
const LogGroup, LogRate, LogBurst = 116, 5, 10

// SetType is what the elements of a Set are.
type SetType string

// The types, as nft names them.
const (
	Addresses  SetType = "addr"                // one address
	Ranges     SetType = "addr interval"       // disjoint prefixes
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
	Rules  string // one a line, in the grammar of netstate/filter
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
	Prefix   netip.Prefix // a host's, but in Ranges; in Devices none
	Protocol uint8        // IANA's number; NamedPorts only
	Port     uint16       // NamedPorts only
	Verdict  string       // Verdicts only: "return", or "goto" and the name of a Filter
	Extra    string
}

// Key implements Object.
func (e Element) Key() Key {
	return Key{Kind: KindElement, Name: words(e.Set, e.Dev), Prefix: e.Prefix, Metric: int(e.Protocol)<<16 | int(e.Port)}
}

func (e Element) String() string {
	port := ""
	if e.Protocol != 0 {
		port = fmt.Sprintf("proto %d port %d", e.Protocol, e.Port)
	}
	return words("element", e.Set, e.Dev, match("", e.Prefix), port, prefixed(": ", e.Verdict), e.Extra)
}

// Hook is a base chain of the FilterTable, through which all forwarded packets of a family go, or all that are for the node
// itself; for Ethernet all frames that come in through ports of bridges. Slot: family and place. Mark: the table's name.
// Cascade: none.
type Hook struct {
	Family Family
	Local  bool   // the packets for the node itself; not for Ethernet
	Rules  string // one a line, in the grammar of netstate/filter
	// Extra says what stands in the table that no object describes. Then nothing else of the family is observed, and a
	// change of the Hook makes the whole table again.
	Extra string
}

// Key implements Object.
func (h Hook) Key() Key { return Key{Kind: KindHook, Name: h.Name(), Metric: h.Family.Bits()} }

// Name returns the name of the chain, which is nftables' of the place where it hangs.
func (h Hook) Name() string {
	switch {
	case h.Family == Ethernet:
		return "prerouting"
	case h.Local:
		return "input"
	}
	return "forward"
}

func (h Hook) String() string {
	return words("hook", h.Family.nft(), h.Name(), fmt.Sprintf("{%s}", h.Rules), h.Extra)
}
