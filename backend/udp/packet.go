package udp

import (
	"encoding/binary"
	"net/netip"
)

// The sizes of fixed headers in bytes, and where addresses stand in them (RFC 791, RFC 8200).
const (
	header4, header6 = 20, 40
	icmpHeader       = 8
)

// addresses are a packet's source and destination; ok is false for what is no IP packet or is cut short.
func addresses(p []byte) (src, dst netip.Addr, ok bool) {
	switch {
	case len(p) >= header4 && p[0]>>4 == 4 && int(binary.BigEndian.Uint16(p[2:])) <= len(p) && p[0]&15 >= 5:
		return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), true
	case len(p) >= header6 && p[0]>>4 == 6 && header6+int(binary.BigEndian.Uint16(p[4:])) <= len(p):
		return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), true
	}
	return src, dst, false
}

// unreachable appends to b the ICMP message "there is no route" about packet p, to its source. It comes from p's own
// destination: the kernel drops what claims to come from an address of this host. It appends nothing for
// packets about which no such message may be sent (RFC 1122 3.2.2, RFC 4443 2.4): ICMP errors, fragments but
// the first, multicast.
func unreachable(b []byte, p []byte) []byte {
	src, dst, ok := addresses(p)
	if !ok || src.IsUnspecified() || src.IsMulticast() || dst.IsMulticast() {
		return b
	}
	if src.Is4() {
		return unreachable4(b, p, dst, src)
	}
	return unreachable6(b, p, dst, src)
}

// The protocol numbers and types that matter here.
const (
	icmp4, icmp6               = 1, 58
	unreachType4, unreachType6 = 3, 1
	hopLimit                   = 64
	least6                     = 1280 // no error about an IPv6 packet may be longer
)

func unreachable4(b, p []byte, from, to netip.Addr) []byte {
	inner := int(p[0]&15) * 4
	echo := func(t byte) bool { return t == 8 || t == 0 }
	fragment := binary.BigEndian.Uint16(p[6:])&0x1fff != 0
	if fragment || len(p) < inner+8 || p[9] == icmp4 && !echo(p[inner]) {
		return b
	}
	p = p[:inner+8]
	at := len(b)
	b = append(b, 0x45, 0, 0, byte(header4+icmpHeader+len(p)), 0, 0, 0, 0, hopLimit, icmp4, 0, 0)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[at+10:], checksum(b[at:], 0))
	b = append(b, unreachType4, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, p...)
	binary.BigEndian.PutUint16(b[at+header4+2:], checksum(b[at+header4:], 0))
	return b
}

func unreachable6(b, p []byte, from, to netip.Addr) []byte {
	if p[6] == icmp6 && (len(p) <= header6 || p[header6] < 128) {
		return b
	}
	p = p[:min(len(p), least6-header6-icmpHeader)]
	at, size := len(b), icmpHeader+len(p)
	b = append(b, 0x60, 0, 0, 0, byte(size>>8), byte(size), icmp6, hopLimit)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = append(b, unreachType6, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, p...)
	pseudo := uint32(size) + icmp6 // and the addresses, which stand right before
	binary.BigEndian.PutUint16(b[at+header6+2:], checksum(b[at+8:], pseudo))
	return b
}

// checksum is the Internet checksum (RFC 1071) of b, begun with sum.
func checksum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
