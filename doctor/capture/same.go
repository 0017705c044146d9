package capture

import (
	"bytes"
	"encoding/binary"
)

const (
	ethernetSize = 14
	arpSize      = 28
	ipv4Size     = 20
	ipv6Size     = 40
	udpSize      = 8
	vxlanSize    = 8
)

// innerAt are the places where a packet's IP header can be, from the first one on: there, or behind what encapsulates
// it (ipip; flannel's udp; VXLAN; each over IPv4 and IPv6).
var innerAt = []int{0, ipv4Size, ipv4Size + udpSize, ipv4Size + udpSize + vxlanSize + ethernetSize, ipv6Size,
	ipv6Size + udpSize, ipv6Size + udpSize + vxlanSize + ethernetSize}

// samePacket reports whether two packets are the same one at two places of a host, where one may be encapsulated, and
// routers change what is theirs to change. The end of either may be missing.
func samePacket(a, b []byte) bool {
	if len(a) >= arpSize && len(b) >= arpSize && a[0]>>4 == 0 && b[0]>>4 == 0 {
		return bytes.Equal(a[:arpSize], b[:arpSize])
	}
	for _, at := range innerAt {
		if at < len(a) && sameIP(a[at:], b) || at < len(b) && sameIP(a, b[at:]) {
			return true
		}
	}
	return false
}

// sameIP compares two packets without what changes at a hop: time to live, traffic class, and IPv4's checksum.
func sameIP(a, b []byte) bool {
	total := lengthOf(a)
	if total == 0 || total != lengthOf(b) {
		return false
	}
	n := min(total, len(a), len(b))
	if a[0]>>4 == 4 {
		return a[0] == b[0] && bytes.Equal(a[2:8], b[2:8]) && a[9] == b[9] && bytes.Equal(a[12:n], b[12:n])
	}
	return bytes.Equal(a[4:7], b[4:7]) && bytes.Equal(a[8:n], b[8:n])
}

// lengthOf returns the whole length of an IP packet by its header, 0 if it is none.
func lengthOf(p []byte) int {
	switch {
	case len(p) >= ipv4Size && p[0]>>4 == 4 && p[0]&15 >= 5:
		if total := int(binary.BigEndian.Uint16(p[2:])); total >= ipv4Size {
			return total
		}
	case len(p) >= ipv6Size && p[0]>>4 == 6:
		return ipv6Size + int(binary.BigEndian.Uint16(p[4:]))
	}
	return 0
}
