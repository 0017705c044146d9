package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// sizeofNdMsg is the size of struct ndmsg in linux/neighbour.h.
const sizeofNdMsg = 12

// Of linux/neighbour.h.
const ndaNextHop, ndaFlagsExt, ntfSticky = 13, 15, 0x40

// entry is a neighbour or a forwarding entry.
type entry struct {
	index int // of the interface
	state uint16
	flags byte
	more  int // the flags of NDA_FLAGS_EXT
	dst   netip.Addr
	mac   netstate.MAC
	port  int // 0: the device's
	vni   int
	via   int // index of the outer interface, 0: the device's
	// Never ours:
	nexthop int // a group of destinations
	source  int // the VNI that an entry of an external device is for

	master, vlan int // of a bridge's entry
}

func parseEntry(m []byte) (entry, error) {
	if len(m) < sizeofNdMsg {
		return entry{}, fmt.Errorf("a neighbour entry of %d bytes: want at least %d", len(m), sizeofNdMsg)
	}
	e := entry{index: int(int32(binary.NativeEndian.Uint32(m[4:]))), state: binary.NativeEndian.Uint16(m[8:]),
		flags: m[10]}
	for kind, value := range rtnl.Attributes(m[sizeofNdMsg:]) {
		switch {
		case kind == unix.NDA_DST:
			e.dst = rtnl.Addr(value)
		case kind == unix.NDA_LLADDR:
			copy(e.mac[:], value)
		case kind == unix.NDA_PORT && len(value) == 2:
			e.port = int(binary.BigEndian.Uint16(value))
		case kind == unix.NDA_VNI:
			e.vni = intOf(value)
		case kind == unix.NDA_IFINDEX:
			e.via = intOf(value)
		case kind == ndaNextHop:
			e.nexthop = intOf(value)
		case kind == unix.NDA_SRC_VNI:
			e.source = intOf(value)
		case kind == ndaFlagsExt:
			e.more = intOf(value)
		case kind == unix.NDA_MASTER:
			e.master = intOf(value)
		case kind == unix.NDA_VLAN && len(value) == 2:
			e.vlan = int(binary.NativeEndian.Uint16(value))
		}
	}
	return e, nil
}

// intOf reads an attribute of four bytes, and returns 0 if it is shorter.
func intOf(value []byte) int {
	if len(value) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(value))
}

// decodeNeigh reports false for entries that are the kernel's. On a VXLAN device it learns some, and permanent ones are
// ours. On a device without hardware addresses all of its entries have the state NOARP: one that has another state keeps
// packets from their peer until it is deleted.
func (f *filter) decodeNeigh(n entry) (netstate.Neigh, bool) {
	o := netstate.Neigh{Dev: f.names[n.index], IP: n.dst, MAC: n.mac}
	if n.flags&notOurs != 0 || n.more != 0 || n.state != unix.NUD_PERMANENT {
		e := n.marks()
		e.add(n.state != unix.NUD_PERMANENT, "nud %#x", n.state)
		o.Extra = e.String()
	}
	if f.links[n.index] != "vxlan" {
		return o, n.state != unix.NUD_NOARP || n.flags&notOurs != 0
	}
	return o, n.state&unix.NUD_PERMANENT != 0 && !linkLocal(o.IP)
}

// notOurs are flags that no entry of ours has: all but those that say where it is, that it is used, and that hardware
// knows it.
const notOurs = 0xff &^ (unix.NTF_SELF | unix.NTF_USE | unix.NTF_OFFLOADED)

// marks are flags of an entry that ours have not.
func (n entry) marks() (e extra) {
	e.add(n.flags&unix.NTF_MASTER != 0, "master")
	e.add(n.flags&unix.NTF_PROXY != 0, "proxy")
	e.add(n.flags&ntfSticky != 0, "sticky")
	e.add(n.more != 0, "managed %d", n.more)
	e.add(n.flags&unix.NTF_EXT_LEARNED != 0, "extern_learn")
	e.add(n.flags&unix.NTF_ROUTER != 0, "router")
	return e
}

// decodeFDB reports false for entries that the device learned.
func decodeFDB(dev string, n entry, names map[int]string) (netstate.FDB, bool) {
	o := netstate.FDB{Dev: dev, MAC: n.mac, Dst: n.dst}
	state := n.state &^ unix.NUD_NOARP // which comes with a permanent entry, at times
	if state != unix.NUD_PERMANENT || n.flags&notOurs != 0 || n.more != 0 || n.port != 0 ||
		n.vni != 0 || n.via != 0 || n.nexthop != 0 || n.source != 0 {
		e := n.marks()
		e.add(n.state&unix.NUD_PERMANENT == 0, "static")
		e.add(state > unix.NUD_PERMANENT, "nud %#x", state)
		e.add(n.port != 0, "port %d", n.port)
		e.add(n.vni != 0, "vni %d", n.vni)
		e.add(n.via != 0, "via %s", names[n.via])
		e.add(n.nexthop != 0, "nhid %d", n.nexthop)
		e.add(n.source != 0, "src_vni %d", n.source)
		o.Extra = e.String()
	}
	return o, n.state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 && n.flags&unix.NTF_SELF != 0
}
