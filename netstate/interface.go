package netstate

import "net/netip"

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

// First returns the first usable address of a family, and whether there is one.
func (i Interface) First(f Family) (netip.Addr, bool) {
	for _, p := range i.Addrs {
		if FamilyOf(p.Addr()) == f {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// Has reports whether a is one of i's addresses.
func (i Interface) Has(a netip.Addr) bool {
	for _, p := range i.Addrs {
		if p.Addr() == a {
			return true
		}
	}
	return false
}
