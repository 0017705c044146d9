package rtnl

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Link is a device as the kernel sends it: struct ifinfomsg and attributes (linux/if_link.h). Its methods return zero for
// what the kernel does not say.
type Link []byte

// ParseLink returns a message as a link, which keeps the message's bytes.
func ParseLink(m []byte) (Link, error) {
	if len(m) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("a link of %d bytes: want at least %d", len(m), unix.SizeofIfInfomsg)
	}
	return m, nil
}

// Type returns the kernel's type of the device: ARPHRD_ETHER.
func (l Link) Type() uint16 { return binary.NativeEndian.Uint16(l[2:]) }

// Index returns the number of the device in its namespace.
func (l Link) Index() int { return int(int32(binary.NativeEndian.Uint32(l[4:]))) }

// Flags returns those of net_device_flags: IFF_UP.
func (l Link) Flags() uint32 { return binary.NativeEndian.Uint32(l[8:]) }

// Attribute returns the value of an attribute, or of one nested in it, and nil if there is none.
func (l Link) Attribute(path ...uint16) []byte { return Attribute(l, unix.SizeofIfInfomsg, path...) }

// Text returns an attribute that is a text.
func (l Link) Text(path ...uint16) string { return unix.ByteSliceToString(l.Attribute(path...)) }

// Number returns an attribute that is a number in the machine's byte order.
func (l Link) Number(path ...uint16) int { return int(Number(l.Attribute(path...))) }

// Name returns the name of the device.
func (l Link) Name() string { return l.Text(unix.IFLA_IFNAME) }

// Alias returns the name that somebody gave it beside: ifalias.
func (l Link) Alias() string { return l.Text(unix.IFLA_IFALIAS) }

// Kind returns the device's type in ip-link's words: veth, bridge; empty for hardware and lo.
func (l Link) Kind() string { return l.Text(unix.IFLA_LINKINFO, unix.IFLA_INFO_KIND) }

// Info returns an attribute of the device's kind.
func (l Link) Info(id uint16) []byte { return l.Attribute(unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, id) }

// Master returns the index of the device that it is a port of.
func (l Link) Master() int { return l.Number(unix.IFLA_MASTER) }

// MTU returns the size of its largest packet in bytes.
func (l Link) MTU() int { return l.Number(unix.IFLA_MTU) }

// Number reads a value of one to eight bytes in the machine's byte order. An attribute without bytes, which says something
// by being there, is 1, and one that is missing 0.
func Number(value []byte) uint64 {
	switch {
	case len(value) >= 8:
		return binary.NativeEndian.Uint64(value)
	case len(value) >= 4:
		return uint64(binary.NativeEndian.Uint32(value))
	case len(value) >= 2:
		return uint64(binary.NativeEndian.Uint16(value))
	case len(value) == 1:
		return uint64(value[0])
	case value != nil:
		return 1
	}
	return 0
}

// Int reads the first four bytes of a value, and returns 0 if it has fewer.
func Int(value []byte) int {
	if len(value) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(value))
}
