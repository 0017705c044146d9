package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// SizeofNdMsg is the size of struct ndmsg of linux/neighbour.h.
const SizeofNdMsg = 12

// Of linux/neighbour.h: attributes, and a flag.
const ndaNextHop, ndaFlagsExt, Sticky = 13, 15, 0x40

// Entry is a neighbour or an entry of a forwarding table: struct ndmsg and the attributes behind it.
type Entry struct {
	Family byte
	Index  int    // of the device
	State  uint16 // NUD_…
	Flags  byte   // NTF_…
	More   int    // NDA_FLAGS_EXT
	Dst    netip.Addr
	MAC    []byte // a part of the message
	Port   int    // 0: the device's
	VNI    int
	Via    int // index of the outer device; 0: the device's

	NextHop      int // a group of destinations
	Source       int // the VNI that an entry of an external device is for
	Master, VLAN int // of a bridge's entry
}

// ParseEntry reads one entry.
func ParseEntry(m []byte) (Entry, error) {
	if len(m) < SizeofNdMsg {
		return Entry{}, fmt.Errorf("a neighbour entry of %d bytes: want at least %d", len(m), SizeofNdMsg)
	}
	e := Entry{Family: m[0], Index: int(int32(binary.NativeEndian.Uint32(m[4:]))), State: binary.NativeEndian.Uint16(m[8:]),
		Flags: m[10]}
	for kind, value := range Attributes(m[SizeofNdMsg:]) {
		switch kind {
		case unix.NDA_DST:
			e.Dst = Addr(value)
		case unix.NDA_LLADDR:
			e.MAC = value
		case unix.NDA_PORT:
			if len(value) == 2 {
				e.Port = int(binary.BigEndian.Uint16(value))
			}
		case unix.NDA_VLAN:
			if len(value) == 2 {
				e.VLAN = int(binary.NativeEndian.Uint16(value))
			}
		case unix.NDA_VNI:
			e.VNI = Int(value)
		case unix.NDA_IFINDEX:
			e.Via = Int(value)
		case unix.NDA_SRC_VNI:
			e.Source = Int(value)
		case unix.NDA_MASTER:
			e.Master = Int(value)
		case ndaNextHop:
			e.NextHop = Int(value)
		case ndaFlagsExt:
			e.More = Int(value)
		}
	}
	return e, nil
}
