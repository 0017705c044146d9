package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// fdbEntry is a forwarding entry. The netlink library's Neigh has no UDP port and no outer interface, and an
// altered one of these would look intact.
type fdbEntry struct {
	netlink.Neigh
	port int // 0: the device's
	via  int // interface index, 0: the device's
}

// fdb lists the forwarding entries of all devices: the kernel does not filter them for one device.
func (k *Kernel) fdb() ([]fdbEntry, error) {
	return dump("forwarding entries", func() ([]fdbEntry, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.Sockets = k.sockets
		req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE})
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		if err != nil {
			return nil, err
		}
		entries := make([]fdbEntry, 0, len(msgs))
		for _, m := range msgs {
			e, err := parseFDB(m)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
		return entries, nil
	})
}

// sizeofNdMsg is the size of struct ndmsg in linux/neighbour.h.
const sizeofNdMsg = 12

func parseFDB(m []byte) (fdbEntry, error) {
	if len(m) < sizeofNdMsg {
		return fdbEntry{}, fmt.Errorf("a forwarding entry of %d bytes: want at least %d", len(m), sizeofNdMsg)
	}
	n, err := netlink.NeighDeserialize(m)
	if err != nil {
		return fdbEntry{}, err
	}
	e := fdbEntry{Neigh: *n}
	attrs, err := nl.ParseRouteAttr(m[sizeofNdMsg:])
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netlink.NDA_PORT && len(a.Value) == 2:
			e.port = int(binary.BigEndian.Uint16(a.Value))
		case a.Attr.Type == netlink.NDA_IFINDEX && len(a.Value) == 4:
			e.via = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return e, err
}

// decodeFDB is false for entries that the device learned.
func decodeFDB(dev string, n fdbEntry, names map[int]string) (netstate.FDB, bool) {
	var e extra
	e.add(n.State&netlink.NUD_PERMANENT == 0, "static")
	e.add(n.port != 0, "port %d", n.port)
	e.add(n.VNI != 0, "vni %d", n.VNI)
	e.add(n.via != 0, "via %s", names[n.via])
	return netstate.FDB{Dev: dev, MAC: macOf(n.HardwareAddr), Dst: addrOf(n.IP), Extra: e.String()},
		n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 && n.Flags&netlink.NTF_SELF != 0
}
