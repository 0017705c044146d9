package fastpath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// sockets are those with which to ask the kernel, in the network namespace of the thread that opened them.
type sockets struct {
	names names
	nl    *netlink.Handle
	bulk  *rtnl.Conn
	nft   *nl.SocketHandle
	ipsec *nl.SocketHandle // nil: the kernel has no IPsec
}

func connect() (s sockets, err error) {
	if s.names.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		s.names.fd = -1
		return s, fmt.Errorf("open a socket for the names of devices: %w", err)
	}
	if s.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return s, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err = s.nl.SetSocketTimeout(rtnl.Timeout); err != nil {
		return s, fmt.Errorf("limit the time of a netlink socket: %w", err)
	}
	if s.bulk, err = rtnl.Dial(); err != nil {
		return s, err
	}
	nft, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return s, fmt.Errorf("open a netlink socket for nf_tables: %w", err)
	}
	s.nft = &nl.SocketHandle{Socket: nft}
	ipsec, err := nl.Subscribe(unix.NETLINK_XFRM)
	switch {
	case err == nil:
		s.ipsec = &nl.SocketHandle{Socket: ipsec}
	case !errors.Is(err, unix.EPROTONOSUPPORT):
		return s, fmt.Errorf("open a netlink socket for IPsec: %w", err)
	}
	return s, nil
}

// close closes what connect could open.
func (s sockets) close() {
	if s.names.fd >= 0 {
		_ = unix.Close(s.names.fd) // nothing was written to it
	}
	if s.nl != nil {
		s.nl.Close()
	}
	if s.bulk != nil {
		s.bulk.Close()
	}
	if s.nft != nil {
		s.nft.Close()
	}
	if s.ipsec != nil {
		s.ipsec.Close()
	}
}
