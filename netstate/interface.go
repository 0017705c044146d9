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
	Default  [2]bool        // has the preferred default route of IPv4, of IPv6
}

// First is the first usable address of one family, and whether there is one.
func (i Interface) First(is4 bool) (netip.Addr, bool) {
	for _, p := range i.Addrs {
		if p.Addr().Is4() == is4 {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// Has says whether a is one of i's addresses.
func (i Interface) Has(a netip.Addr) bool {
	for _, p := range i.Addrs {
		if p.Addr() == a {
			return true
		}
	}
	return false
}
