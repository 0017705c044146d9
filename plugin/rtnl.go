package plugin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// rtnl is a socket to the kernel's network configuration that simply blocks and takes several requests at once. The
// library's own sockets go through the Go runtime's poller and have a fresh buffer of 64 KiB for each answer, which
// costs more than the requests: a process of this plugin makes seven.
type rtnl struct {
	fd  int
	buf []byte
}

func dialRTNL() (*rtnl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &rtnl{fd, make([]byte, 32<<10)}, nil
}

// dialRTNLIn opens the socket in the namespace ns; own is the namespace that this process is in.
func dialRTNLIn(ns, own netns.NsHandle) (s *rtnl, err error) {
	err = within(ns, own, func() error {
		s, err = dialRTNL()
		return err
	})
	return s, err
}

// within runs f in the namespace ns. A thread that cannot go back to its own stays locked, and is not used for
// anything else.
func within(ns, own netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err := f()
	if back := netns.Set(own); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

func (s *rtnl) close() { _ = unix.Close(s.fd) }

// do sends the requests in one write. The kernel carries out each, whatever becomes of those before it; the first
// error is returned, with the place of its request.
func (s *rtnl) do(requests ...*nl.NetlinkRequest) (failed int, err error) {
	var message []byte
	for _, r := range requests {
		message = append(message, r.Serialize()...)
	}
	if err := unix.Sendto(s.fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	for i, r := range requests {
		if _, e := s.answer(r.Seq); e != nil && err == nil {
			failed, err = i, e
		}
	}
	return failed, err
}

// answer is the payload of the answer to the request of that number; an acknowledgement has none.
func (s *rtnl) answer(seq uint32) ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		kind, number, payload, err := parseMessage(s.buf[:n])
		if err != nil || number == seq {
			return payload, errors.Join(err, errnoIn(kind, payload))
		}
	}
}

// parseMessage takes the only message of a datagram apart (struct nlmsghdr, linux/netlink.h).
func parseMessage(b []byte) (kind uint16, seq uint32, payload []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return 0, 0, nil, fmt.Errorf("the kernel's answer has %d bytes, want at least a header of %d", len(b), unix.SizeofNlMsghdr)
	}
	length := binary.NativeEndian.Uint32(b)
	if length < unix.SizeofNlMsghdr || int(length) > len(b) {
		return 0, 0, nil, fmt.Errorf("the kernel's answer says it has %d bytes, and %d came", length, len(b))
	}
	return binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:length], nil
}

// errnoIn is the error in an NLMSG_ERROR; that of an acknowledgement is zero.
func errnoIn(kind uint16, payload []byte) error {
	if kind != unix.NLMSG_ERROR || len(payload) < 4 {
		return nil
	}
	if e := int32(binary.NativeEndian.Uint32(payload)); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}

// link is the interface named dev, nil if there is none.
func (s *rtnl) link(dev string) (netlink.Link, error) {
	message, err := s.linkMessage(dev)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return netlink.LinkDeserialize(nil, message)
}

// linkMessage is what the kernel says of dev: struct ifinfomsg and attributes.
func (s *rtnl) linkMessage(dev string) ([]byte, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(dev)))
	if err := unix.Sendto(s.fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	message, err := s.answer(req.Seq)
	if err == nil && len(message) < unix.SizeofIfInfomsg {
		err = unix.ENODEV
	}
	return message, err
}
