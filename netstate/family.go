package netstate

import "net/netip"

// Family is an address family, by the version number in the first four bits of its packets.
type Family uint8

// The address families. The zero Family is neither.
const (
	IPv4 Family = 4
	IPv6 Family = 6
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

// Bits returns the length of an address in bits: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// nft returns nftables' name of the family: "ip" or "ip6".
func (f Family) nft() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}
