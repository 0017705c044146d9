package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/ipam"
)

// InUse returns the addresses that the marks of pods' ports name, and the port of each, where the store has no
// reservation of the pod's: somebody can delete files while the pod lives, and its port goes with it. What comes or goes
// meanwhile may be missing. It asks for names, and for the marks of those that the store does not explain: all marks would
// cost twice as much.
func (n *Node) InUse(store ipam.Store) (map[netip.Addr]string, error) {
	intact := store.Intact()
	var names []string
	ports := request(unix.RTM_GETLINK, unix.NLM_F_DUMP, nl.NewIfInfomsg(unix.AF_BRIDGE))
	err := n.conn.List(ports, func(m []byte) error {
		name := rtnl.Link(m).Name()
		if digits, ok := strings.CutPrefix(name, endPrefix); ok && len(digits) == ipam.EndDigits && !intact(digits) {
			names = append(names, name)
		}
		return nil
	})
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil
	}
	all := map[netip.Addr]string{}
	for _, name := range names {
		_, message, linkErr := getLink(n.conn, name)
		err = errors.Join(err, linkErr)
		if p, ok := portOf(message); ok {
			for _, a := range p.Addresses() {
				all[a] = name
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look for the addresses of pods: %w", err)
	}
	return all, nil
}

// IsPort reports whether the device with that index carries the mark of a pod's port.
func (n *Node) IsPort(index int) (is bool, err error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	err = n.conn.List(request(unix.RTM_GETLINK, 0, msg), func(m []byte) error {
		_, is = portOf(m)
		return nil
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("look for device %d: %w", index, err)
	}
	return is, nil
}

// portOf returns the pod's port that a link message is about, as its mark has it.
func portOf(message []byte) (netstate.Port, bool) {
	l := rtnl.Link(message)
	return netstate.ParsePort(l.Name(), l.Alias())
}
