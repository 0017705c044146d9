package unusual

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// address is an address of a device.
type address struct {
	rtnl.Address
	family byte
	local  netip.Addr
	prefix netip.Prefix // of the connected route; with a peer, the peer's
	dev    string
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
		parsed, err := rtnl.ParseAddress(m)
		if err != nil {
			return nil, err
		}
		a := address{Address: parsed, family: m[0], local: parsed.Prefix.Addr(), prefix: parsed.Prefix, dev: s.names[parsed.Index]}
		if parsed.Peer.IsValid() {
			a.prefix = parsed.Peer
		}
		if a.local.IsValid() {
			all = append(all, a)
		}
	}
	s.addrs = all
	return all, nil
}
