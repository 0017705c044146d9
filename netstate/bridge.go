package netstate

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// LinkLocal returns the address that the kernel gives to a device with this hardware address (EUI-64, RFC 4291).
func LinkLocal(mac MAC) netip.Prefix {
	a := [16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// BridgeMAC returns the hardware address that belongs to an address on the pods' bridge: 0a:58 and the four bytes of
// an IPv4 address, or 0a:58 and a 32-bit hash of an IPv6 one. The bridge has its gateway's, a pod its own, so
// that neighbour entries stay right when the bridge is recreated or another pod gets the address.
func BridgeMAC(addr netip.Addr) MAC {
	mac := MAC{0x0a, 0x58}
	if addr.Is4() {
		ip := addr.As4()
		copy(mac[2:], ip[:])
		return mac
	}
	h := fnv.New32a()
	ip := addr.As16()
	h.Write(ip[:])
	binary.BigEndian.PutUint32(mac[2:], h.Sum32())
	return mac
}
