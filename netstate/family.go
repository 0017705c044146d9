package netstate

import "net/netip"

// Family is an address family, by the version number in the first four bits of its packets.
type Family uint8

// The address families. The zero Family is neither.
const (
	IPv4 Family = 4
	IPv6 Family = 6

	// Ethernet is no address family, and never one of Families: objects of nftables have it that see the frames of bridges.
	Ethernet Family = 1
)

// Families holds both, in the order in which they are printed and tried.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of a. An IPv4 address mapped into IPv6 is IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Bits returns the length of an address in bits: 32, 128 or 48.
func (f Family) Bits() int {
	switch f {
	case IPv4:
		return 32
	case Ethernet:
		return 48
	}
	return 128
}

// All returns the prefix of all addresses of an address family.
func (f Family) All() netip.Prefix {
	if f == IPv4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// String returns "IPv4", "IPv6" or "Ethernet".
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case Ethernet:
		return "Ethernet"
	}
	return "IPv6"
}

// nft returns nftables' name of the family: "ip", "ip6" or "bridge".
func (f Family) nft() string {
	switch f {
	case IPv6:
		return "ip6"
	case Ethernet:
		return "bridge"
	}
	return "ip"
}
