package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// sizeofNdMsg is the size of struct ndmsg in linux/neighbour.h.
const sizeofNdMsg = 12

// entry is a neighbour or a forwarding entry.
type entry struct {
	index int // of the interface
	state uint16
	flags byte
	dst   netip.Addr
	mac   netstate.MAC
	port  int // 0: the device's
	vni   int
	via   int // index of the outer interface, 0: the device's
}

func parseEntry(m []byte) (entry, error) {
	if len(m) < sizeofNdMsg {
		return entry{}, fmt.Errorf("a neighbour entry of %d bytes: want at least %d", len(m), sizeofNdMsg)
	}
	e := entry{index: int(int32(binary.NativeEndian.Uint32(m[4:]))), state: binary.NativeEndian.Uint16(m[8:]), flags: m[10]}
	return e, attributes(m[sizeofNdMsg:], func(kind uint16, value []byte) {
		switch {
		case kind == unix.NDA_DST:
			e.dst = addrOf(value)
		case kind == unix.NDA_LLADDR:
			copy(e.mac[:], value)
		case kind == unix.NDA_PORT && len(value) == 2:
			e.port = int(binary.BigEndian.Uint16(value))
		case kind == unix.NDA_VNI && len(value) == 4:
			e.vni = int(binary.NativeEndian.Uint32(value))
		case kind == unix.NDA_IFINDEX && len(value) == 4:
			e.via = int(binary.NativeEndian.Uint32(value))
		}
	})
}

// typeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off a type (linux/netlink.h).
const typeMask = 1<<14 - 1

// attributes calls do with each attribute, without the flags in its type.
func attributes(data []byte, do func(kind uint16, value []byte)) error {
	for len(data) >= unix.SizeofRtAttr {
		size, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])
		if size < unix.SizeofRtAttr || size > len(data) {
			return fmt.Errorf("a netlink attribute of %d bytes in %d", size, len(data))
		}
		do(kind&typeMask, data[unix.SizeofRtAttr:size])
		data = data[min(aligned(size), len(data)):]
	}
	return nil
}

// decodeNeigh is false for entries that the kernel learned: only permanent ones are ours.
func decodeNeigh(dev string, n entry) (netstate.Neigh, bool) {
	o := netstate.Neigh{Dev: dev, IP: n.dst, MAC: n.mac}
	return o, n.state&unix.NUD_PERMANENT != 0 && !linkLocal(o.IP)
}

// decodeFDB is false for entries that the device learned.
func decodeFDB(dev string, n entry, names map[int]string) (netstate.FDB, bool) {
	o := netstate.FDB{Dev: dev, MAC: n.mac, Dst: n.dst}
	if n.state&unix.NUD_PERMANENT == 0 || n.port != 0 || n.vni != 0 || n.via != 0 {
		var e extra
		e.add(n.state&unix.NUD_PERMANENT == 0, "static")
		e.add(n.port != 0, "port %d", n.port)
		e.add(n.vni != 0, "vni %d", n.vni)
		e.add(n.via != 0, "via %s", names[n.via])
		o.Extra = e.String()
	}
	return o, n.state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 && n.flags&unix.NTF_SELF != 0
}
