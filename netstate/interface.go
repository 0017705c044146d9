package netstate

import (
	"net/netip"
	"slices"
)

// Interface is a fact about the machine, not state that Twill wants: what an underlay can be chosen from.
type Interface struct {
	Name     string
	MTU      int
	MAC      MAC
	Up       bool
	Owned    bool           // one of Twill's own devices, or a port of one: never an underlay
	AcceptRA bool           // IPv6 router advertisements configure it
	Addrs    []netip.Prefix // with host bits, without link-local addresses, those that last longest first
	OnLink   []netip.Prefix // reached without a gateway, masked
	Default  []Family       // of whose preferred default route it is the device
}

// Has reports whether a is one of i's addresses.
func (i Interface) Has(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}
