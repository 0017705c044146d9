package unusual

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// address is an address of a device.
type address struct {
	family    byte
	local     netip.Addr
	prefix    netip.Prefix // of the connected route; with a peer, the peer's
	broadcast netip.Addr
	dev       string
	scope     byte
	flags     uint32
}

// addresses returns those of all devices. They are read once.
func (s *space) addresses() ([]address, error) {
	if s.addrs != nil {
		return s.addrs, nil
	}
	messages, err := s.list("addresses", unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, err
	}
	all := make([]address, 0, len(messages))
	for _, m := range messages {
		if len(m) < unix.SizeofIfAddrmsg {
			return nil, fmt.Errorf("an address of %d bytes: want at least %d", len(m), unix.SizeofIfAddrmsg)
		}
		a := address{family: m[0], flags: uint32(m[2]), scope: m[3], dev: s.names[int(binary.NativeEndian.Uint32(m[4:]))]}
		attribute := func(id uint16) []byte { return rtnl.Attribute(m, unix.SizeofIfAddrmsg, id) }
		a.local, a.broadcast = rtnl.Addr(attribute(unix.IFA_LOCAL)), rtnl.Addr(attribute(unix.IFA_BROADCAST))
		peer := rtnl.Addr(attribute(unix.IFA_ADDRESS))
		if !a.local.IsValid() {
			a.local = peer
		}
		if !peer.IsValid() {
			peer = a.local
		}
		if flags := attribute(unix.IFA_FLAGS); flags != nil {
			a.flags = uint32(number(flags))
		}
		a.prefix = netip.PrefixFrom(peer, int(m[1]))
		if a.local.IsValid() {
			all = append(all, a)
		}
	}
	s.addrs = all
	return all, nil
}
