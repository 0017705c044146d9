package datagram

import (
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlSpace is room for what comes with a message: the datagrams' size, and where they were sent to.
var controlSpace = unix.CmsgSpace(4) + unix.CmsgSpace(unix.SizeofInet6Pktinfo)

// appendControl appends a control message (cmsg(3)) with room for size bytes, and is where these stand.
func appendControl(oob []byte, level, kind int32, size int) (all, data []byte) {
	at, space := len(oob), unix.CmsgSpace(size)
	oob = slices.Grow(oob, space)[:at+space]
	clear(oob[at:])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	return oob, oob[at+unix.CmsgLen(0) : at+unix.CmsgLen(size)]
}

// appendSegmentSize says how long the datagrams are (linux/udp.h: UDP_SEGMENT).
func appendSegmentSize(oob []byte, size uint16) []byte {
	oob, data := appendControl(oob, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	*(*uint16)(unsafe.Pointer(&data[0])) = size
	return oob
}

// appendSource says which address of this host to send from (ip(7): IP_PKTINFO; ipv6(7)). An invalid one says nothing.
func appendSource(oob []byte, from netip.Addr) []byte {
	switch {
	case from.Is4():
		oob, data := appendControl(oob, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		(*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Spec_dst = from.As4()
		return oob
	case from.Is6():
		oob, data := appendControl(oob, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		(*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Addr = from.As16()
		return oob
	}
	return oob
}

// parseControl is how long the datagrams of a received message are, 0 if it is one, and the address that
// they were sent to.
func parseControl(oob []byte) (size int, at netip.Addr) {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		switch {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(*(*int32)(unsafe.Pointer(&data[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			at = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Spec_dst)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			at = netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Addr)
		}
		oob = rest
	}
	return size, at
}
