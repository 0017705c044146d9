package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// entry is a neighbour or a forwarding entry as the kernel sends it.
type entry struct{ rtnl.Entry }

func parseEntry(m []byte) (entry, error) {
	e, err := rtnl.ParseEntry(m)
	return entry{e}, err
}

func (n entry) mac() netstate.MAC { return macOf(n.MAC) }

// decodeNeigh reports false for entries that are the kernel's. On a VXLAN device it learns some, and permanent ones are
// ours. On a device without hardware addresses all of its entries have the state NOARP: one that has another state keeps
// packets from their peer until it is deleted.
func (f *filter) decodeNeigh(n entry) (netstate.Neigh, bool) {
	o := netstate.Neigh{Dev: f.names[n.Index], IP: n.Dst, MAC: n.mac()}
	if n.Flags&notOurs != 0 || n.More != 0 || n.State != unix.NUD_PERMANENT {
		e := n.marks()
		e.add(n.State != unix.NUD_PERMANENT, "nud %#x", n.State)
		o.Extra = e.String()
	}
	if f.links[n.Index] != "vxlan" {
		return o, n.State != unix.NUD_NOARP || n.Flags&notOurs != 0
	}
	return o, n.State&unix.NUD_PERMANENT != 0 && !linkLocal(o.IP)
}

// notOurs are flags that no entry of ours has: all but those that say where it is, that it is used, and that hardware
// knows it.
const notOurs = 0xff &^ (unix.NTF_SELF | unix.NTF_USE | unix.NTF_OFFLOADED)

// marks are flags of an entry that ours have not.
func (n entry) marks() (e extra) {
	e.add(n.Flags&unix.NTF_MASTER != 0, "master")
	e.add(n.Flags&unix.NTF_PROXY != 0, "proxy")
	e.add(n.Flags&rtnl.Sticky != 0, "sticky")
	e.add(n.More != 0, "managed %d", n.More)
	e.add(n.Flags&unix.NTF_EXT_LEARNED != 0, "extern_learn")
	e.add(n.Flags&unix.NTF_ROUTER != 0, "router")
	return e
}

// decodeFDB reports false for entries that the device learned.
func decodeFDB(dev string, n entry, names map[int]string) (netstate.FDB, bool) {
	o := netstate.FDB{Dev: dev, MAC: n.mac(), Dst: n.Dst}
	state := n.State &^ unix.NUD_NOARP // which comes with a permanent entry, at times
	if state != unix.NUD_PERMANENT || n.Flags&notOurs != 0 || n.More != 0 || n.Port != 0 ||
		n.VNI != 0 || n.Via != 0 || n.NextHop != 0 || n.Source != 0 {
		e := n.marks()
		e.add(n.State&unix.NUD_PERMANENT == 0, "static")
		e.add(state > unix.NUD_PERMANENT, "nud %#x", state)
		e.add(n.Port != 0, "port %d", n.Port)
		e.add(n.VNI != 0, "vni %d", n.VNI)
		e.add(n.Via != 0, "via %s", names[n.Via])
		e.add(n.NextHop != 0, "nhid %d", n.NextHop)
		e.add(n.Source != 0, "src_vni %d", n.Source)
		o.Extra = e.String()
	}
	return o, n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 && n.Flags&unix.NTF_SELF != 0
}
