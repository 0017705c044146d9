package unusual

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// extManaged is NTF_EXT_MANAGED of linux/neighbour.h.
const extManaged = 1

// entry is a neighbour, or an entry of a forwarding table.
type entry = rtnl.Entry

// entries returns the neighbours of a family, or proxies (NTF_PROXY), or of AF_BRIDGE the forwarding entries.
func (s *space) entries(family, flags byte) (all []entry, err error) {
	messages, err := s.list("neighbours", unix.RTM_GETNEIGH, &netlink.Ndmsg{Family: family, Flags: flags})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		e, err := rtnl.ParseEntry(m)
		if err != nil {
			return nil, err
		}
		if e.Family == family {
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
	dev := s.byIndex(e.Index)
	switch {
	case e.Flags&unix.NTF_EXT_LEARNED != 0 || e.More != 0:
		return false
	case e.State&unix.NUD_NOARP != 0:
		return e.Dst.IsMulticast() || e.Dst.IsUnspecified() || dev.flags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 ||
			slices.Equal(e.MAC, broadcastMAC)
	}
	return e.State&(unix.NUD_PERMANENT|unix.NUD_FAILED) == 0
}

var broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (s *space) neighbour(e entry) locate.Object {
	dev := s.names[e.Index]
	family, proxy := "", ""
	if e.Family == unix.AF_INET6 {
		family = "-6 "
	}
	var w words
	w.add(true, "%s", e.Dst)
	w.add(dev != "", "dev %s", dev)
	w.add(len(e.MAC) > 0, "lladdr %s", net.HardwareAddr(e.MAC))
	w.add(e.Flags&unix.NTF_ROUTER != 0, "router")
	w.add(e.Flags&unix.NTF_PROXY != 0, "proxy")
	w.add(e.More&extManaged != 0, "managed")
	w.add(e.Flags&unix.NTF_EXT_LEARNED != 0, "extern_learn")
	w.add(e.Flags&unix.NTF_PROXY == 0, "%s", stateName(e.State))
	if e.Flags&unix.NTF_PROXY != 0 {
		proxy = "proxy "
	}
	fix := fmt.Sprintf("ip %sneigh del %s%s", family, proxy, e.Dst)
	if dev != "" {
		fix += " dev " + dev
	}
	return locate.Object{Kind: locate.Neighbour, Dev: dev, MAC: net.HardwareAddr(e.MAC).String(), Value: stateName(e.State),
		Key: netstate.Neigh{Dev: dev, IP: e.Dst}.Key(), Text: w.String(), Usual: "no such entry", Fix: fix,
		About: netip.PrefixFrom(e.Dst, e.Dst.BitLen())}
}

func stateName(state uint16) string {
	names := map[uint16]string{unix.NUD_INCOMPLETE: "INCOMPLETE", unix.NUD_REACHABLE: "REACHABLE", unix.NUD_STALE: "STALE",
		unix.NUD_DELAY: "DELAY", unix.NUD_PROBE: "PROBE", unix.NUD_FAILED: locate.Failed, unix.NUD_NOARP: "NOARP",
		unix.NUD_PERMANENT: "PERMANENT"}
	if name, ok := names[state]; ok {
		return name
	}
	return fmt.Sprintf("%#x", state)
}
