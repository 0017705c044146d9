package rtnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Messages iterates over the messages of one datagram, without a copy of any. It ends before one that is cut short.
func Messages(data []byte) iter.Seq2[unix.NlMsghdr, []byte] {
	return func(yield func(unix.NlMsghdr, []byte) bool) {
		for len(data) >= unix.SizeofNlMsghdr {
			h := unix.NlMsghdr{Len: binary.NativeEndian.Uint32(data), Type: binary.NativeEndian.Uint16(data[4:]),
				Flags: binary.NativeEndian.Uint16(data[6:]), Seq: binary.NativeEndian.Uint32(data[8:])}
			if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(data) || !yield(h, data[unix.SizeofNlMsghdr:h.Len]) {
				return
			}
			data = data[min(aligned(int(h.Len)), len(data)):]
		}
	}
}

// aligned returns the size of a message or an attribute with its padding.
func aligned(size int) int { return (size + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// typeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off a type (linux/netlink.h).
const typeMask = 1<<14 - 1

// Attributes iterates over the attributes in data: types, without their flags, and values. It ends before one that
// is cut short.
func Attributes(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= unix.SizeofRtAttr {
			size, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])
			if size < unix.SizeofRtAttr || size > len(data) || !yield(kind&typeMask, data[unix.SizeofRtAttr:size]) {
				return
			}
			data = data[min(aligned(size), len(data)):]
		}
	}
}

// Attribute returns the value of one attribute behind a header of so many bytes, or of one nested in it, and nil if
// there is none.
func Attribute(data []byte, header int, path ...uint16) []byte {
	if len(data) < header {
		return nil
	}
	data = data[header:]
next:
	for _, want := range path {
		for kind, value := range Attributes(data) {
			if kind == want {
				data = value
				continue next
			}
		}
		return nil
	}
	return data
}
