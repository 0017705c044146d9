package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// Qdisc is a queueing discipline that somebody attached to a device.
type Qdisc struct {
	Dev, Kind     string
	Handle        string // 8001:
	Hook          string // its place, as for tc: root, ingress, clsact, or parent and a class
	Passed, Drops uint32 // packets since it was attached; they wrap
}

// Qdiscs returns the queueing disciplines that somebody attached, a device's root first. Those that the kernel gives a
// device by itself have no handle, and are left out.
func (k *Kernel) Qdiscs() ([]Qdisc, error) {
	names, err := k.linkNames()
	if err != nil {
		return nil, err
	}
	return rtnl.Retry("queueing disciplines", func() ([]Qdisc, error) {
		var all []Qdisc
		r := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
		err := k.bulk.List(r, func(m []byte) error {
			if len(m) < nl.SizeofTcMsg {
				return fmt.Errorf("a queueing discipline of %d bytes: want at least %d", len(m), nl.SizeofTcMsg)
			}
			if msg := nl.DeserializeTcMsg(m); msg.Handle != 0 {
				all = append(all, parseQdisc(m, msg, names[int(msg.Ifindex)]))
			}
			return nil
		})
		return all, err
	})
}

func parseQdisc(m []byte, msg *nl.TcMsg, dev string) Qdisc {
	kind := unix.ByteSliceToString(rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_KIND))
	q := Qdisc{Dev: dev, Kind: kind, Handle: fmt.Sprintf("%x:", msg.Handle>>16), Hook: hook(kind, msg.Parent)}
	const at = 8 // where both counts begin, in the structs of linux/gen_stats.h
	if basic := rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_STATS2, nl.TCA_STATS_BASIC); len(basic) >= at+4 {
		q.Passed = binary.NativeEndian.Uint32(basic[at:])
	}
	if queue := rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_STATS2, nl.TCA_STATS_QUEUE); len(queue) >= at+4 {
		q.Drops = binary.NativeEndian.Uint32(queue[at:])
	}
	return q
}

// hook returns how tc names the place of a discipline.
func hook(kind string, parent uint32) string {
	switch parent {
	case netlink.HANDLE_ROOT:
		return "root"
	case netlink.HANDLE_INGRESS:
		return kind
	}
	return "parent " + netlink.HandleStr(parent)
}
