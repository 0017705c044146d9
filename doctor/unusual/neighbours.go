package unusual

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Of linux/neighbour.h.
const (
	ndaNextHop, ndaFlagsExt = 13, 15
	ntfSticky               = 0x40
	extManaged              = 1
	extLocked               = 2
)

// entry is a neighbour, or an entry of a forwarding table.
type entry struct {
	family byte
	index  int
	state  uint16
	flags  byte
	more   uint32 // NDA_FLAGS_EXT
	dst    netip.Addr
	mac    net.HardwareAddr
	master int
	vlan   int
	port   int
	vni    uint64
	via    int
	nhid   uint64
	srcVNI uint64
}

func parseEntry(m []byte) (entry, error) {
	const size = 12 // of struct ndmsg
	if len(m) < size {
		return entry{}, fmt.Errorf("a neighbour entry of %d bytes: want at least %d", len(m), size)
	}
	e := entry{family: m[0], index: int(int32(binary.NativeEndian.Uint32(m[4:]))), state: binary.NativeEndian.Uint16(m[8:]),
		flags: m[10]}
	for kind, value := range rtnl.Attributes(m[size:]) {
		switch kind {
		case unix.NDA_DST:
			e.dst = rtnl.Addr(value)
		case unix.NDA_LLADDR:
			e.mac = net.HardwareAddr(value)
		case unix.NDA_MASTER:
			e.master = int(number(value))
		case unix.NDA_VLAN:
			e.vlan = int(number(value))
		case unix.NDA_PORT:
			e.port = int(binary.BigEndian.Uint16(append(value, 0, 0)))
		case unix.NDA_VNI:
			e.vni = number(value)
		case unix.NDA_IFINDEX:
			e.via = int(number(value))
		case unix.NDA_SRC_VNI:
			e.srcVNI = number(value)
		case ndaNextHop:
			e.nhid = number(value)
		case ndaFlagsExt:
			e.more = uint32(number(value))
		}
	}
	return e, nil
}

// entries returns the neighbours of a family, or proxies (NTF_PROXY), or of AF_BRIDGE the forwarding entries.
func (s *space) entries(family, flags byte) (all []entry, err error) {
	messages, err := s.list("neighbours", unix.RTM_GETNEIGH, &netlink.Ndmsg{Family: family, Flags: flags})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		e, err := parseEntry(m)
		if err != nil {
			return nil, err
		}
		if e.family == family {
			all = append(all, e)
		}
	}
	return all, nil
}

// unusualNeighbours returns entries that somebody wrote, and those that failed.
func (s *space) unusualNeighbours() (all []locate.Object, err error) {
	for _, family := range families {
		for _, flags := range []byte{0, unix.NTF_PROXY} {
			entries, listErr := s.entries(family, flags)
			err = errors.Join(err, listErr)
			for _, e := range entries {
				if flags == unix.NTF_PROXY || !s.usualNeighbour(e) {
					all = append(all, s.neighbour(e))
				}
			}
		}
	}
	return all, err
}

// usualNeighbour reports whether the kernel made the entry: it needs to ask nobody about multicast, broadcast and its
// own addresses, nor on devices without hardware addresses.
func (s *space) usualNeighbour(e entry) bool {
	dev := s.byIndex(e.index)
	switch {
	case e.flags&unix.NTF_EXT_LEARNED != 0 || e.more != 0:
		return false
	case e.state&unix.NUD_NOARP != 0:
		return e.dst.IsMulticast() || e.dst.IsUnspecified() || dev.flags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 ||
			slices.Equal(e.mac, broadcastMAC)
	}
	return e.state&(unix.NUD_PERMANENT|unix.NUD_FAILED) == 0
}

var broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (s *space) neighbour(e entry) locate.Object {
	dev := s.names[e.index]
	family, proxy := "", ""
	if e.family == unix.AF_INET6 {
		family = "-6 "
	}
	var w words
	w.add(true, "%s", e.dst)
	w.add(dev != "", "dev %s", dev)
	w.add(len(e.mac) > 0, "lladdr %s", e.mac)
	w.add(e.flags&unix.NTF_ROUTER != 0, "router")
	w.add(e.flags&unix.NTF_PROXY != 0, "proxy")
	w.add(e.more&extManaged != 0, "managed")
	w.add(e.flags&unix.NTF_EXT_LEARNED != 0, "extern_learn")
	w.add(e.flags&unix.NTF_PROXY == 0, "%s", stateName(e.state))
	if e.flags&unix.NTF_PROXY != 0 {
		proxy = "proxy "
	}
	fix := fmt.Sprintf("ip %sneigh del %s%s", family, proxy, e.dst)
	if dev != "" {
		fix += " dev " + dev
	}
	return locate.Object{Kind: locate.Neighbour, Dev: dev, Text: w.String(), Usual: "no such entry", Fix: fix,
		About: netip.PrefixFrom(e.dst, e.dst.BitLen())}
}

func stateName(state uint16) string {
	names := map[uint16]string{unix.NUD_INCOMPLETE: "INCOMPLETE", unix.NUD_REACHABLE: "REACHABLE", unix.NUD_STALE: "STALE",
		unix.NUD_DELAY: "DELAY", unix.NUD_PROBE: "PROBE", unix.NUD_FAILED: "FAILED", unix.NUD_NOARP: "NOARP",
		unix.NUD_PERMANENT: "PERMANENT"}
	if name, ok := names[state]; ok {
		return name
	}
	return fmt.Sprintf("%#x", state)
}
