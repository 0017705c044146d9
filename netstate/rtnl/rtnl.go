// Package rtnl speaks rtnetlink where github.com/vishvananda/netlink costs too much: it sends many requests in one
// write, and reads thousands of objects without a copy of each. Requests are made with that library's package nl. It can
// do the same for netfilter's tables.
package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Timeout bounds one request. Lists of 30,000 objects take a tenth of it.
const Timeout = 10 * time.Second

const (
	// receiveBuffer has room for the answers to a batch in which every request fails.
	receiveBuffer = 4 << 20
	// messageBuffer is more than the kernel puts into one message of a list (32 kB).
	messageBuffer = 64 << 10
	// MaxBatch is how many requests are sent in one system call.
	MaxBatch = 500
	// answerSize is more than the kernel charges for an answer, in bytes. Answers that find no room in the receive buffer
	// are lost silently (seen on 6.18), so a batch has no more requests than answers find room.
	answerSize = 2048
)

// Conn is a blocking netlink socket. One goroutine may use it at a time.
type Conn struct {
	fd   int
	port uint32
	in   []byte
}

// Dial opens a socket in the current network namespace.
func Dial() (*Conn, error) { return dialFamily(unix.NETLINK_ROUTE) }

// DialNetfilter opens one for netfilter's requests instead of rtnetlink's.
func DialNetfilter() (*Conn, error) { return dialFamily(unix.NETLINK_NETFILTER) }

func dialFamily(family int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	t := unix.NsecToTimeval(Timeout.Nanoseconds())
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)) // an error does not repeat the request
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) // without the right, batches are smaller
	addr, nameErr := unix.Getsockname(fd)
	if err = errors.Join(err, nameErr); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up a netlink socket: %w", err)
	}
	return &Conn{fd: fd, port: addr.(*unix.SockaddrNetlink).Pid, in: make([]byte, messageBuffer)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Port returns the socket's address. The kernel puts it into most messages about changes that the socket's requests
// made.
func (c *Conn) Port() uint32 { return c.port }

// Do sends the requests, many in one write. The kernel carries out each, whatever becomes of those before it. Do
// returns nil if all succeeded, and otherwise one error or nil for each request. The answers to many may get lost:
// their error is that of the socket, and nobody knows whether they were carried out.
func (c *Conn) Do(requests ...*nl.NetlinkRequest) []error {
	errs, failed := make([]error, len(requests)), false
	room, _ := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF) // 0 if it cannot be read
	done := 0
	for batch := range slices.Chunk(requests, min(max(room/answerSize, 1), MaxBatch)) {
		failed = c.batch(batch, errs[done:done+len(batch)]) || failed
		done += len(batch)
	}
	if !failed {
		return nil
	}
	return errs
}

// batch sends requests in one write and sets the errors of those that fail. The last one is acknowledged.
func (c *Conn) batch(requests []*nl.NetlinkRequest, errs []error) (failed bool) {
	var out []byte
	requests[len(requests)-1].Flags |= unix.NLM_F_ACK
	for _, r := range requests {
		out = append(out, r.Serialize()...)
	}
	over := false
	err := c.send(out)
	for err == nil && !over {
		err = c.receive(func(h unix.NlMsghdr, data []byte) error {
			i := slices.IndexFunc(requests, func(r *nl.NetlinkRequest) bool { return r.Seq == h.Seq })
			if i >= 0 && h.Type == unix.NLMSG_ERROR { // else of an earlier batch
				errs[i] = errno(data)
				failed = failed || errs[i] != nil
				over = i == len(requests)-1
			}
			return nil
		})
	}
	if err != nil {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	return failed || err != nil
}

// errDone ends a list.
var errDone = errors.New("done")

// List sends a request for one object, or for all of a kind (NLM_F_DUMP), and calls do with each, which is valid
// during the call only. See Retry for its error netlink.ErrDumpInterrupted.
func (c *Conn) List(request *nl.NetlinkRequest, do func([]byte) error) error {
	err := c.send(request.Serialize())
	interrupted := false
	for err == nil {
		err = c.receive(func(h unix.NlMsghdr, data []byte) error {
			if h.Seq != request.Seq {
				return nil // of a list that was given up
			}
			interrupted = interrupted || h.Flags&unix.NLM_F_DUMP_INTR != 0
			if h.Type == unix.NLMSG_DONE || h.Type == unix.NLMSG_ERROR {
				if err := errno(data); err != nil {
					return err
				}
				return errDone
			}
			err := do(data)
			if err == nil && h.Flags&unix.NLM_F_MULTI == 0 {
				return errDone
			}
			return err
		})
	}
	if !errors.Is(err, errDone) {
		return err
	}
	if interrupted {
		return netlink.ErrDumpInterrupted
	}
	return nil
}

func (c *Conn) send(data []byte) error {
	return unix.Sendto(c.fd, data, 0, &unix.SockaddrNetlink{})
}

// receive calls do with each message of one datagram.
func (c *Conn) receive(do func(unix.NlMsghdr, []byte) error) error {
	var n, flags int
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, _, flags, _, err = unix.Recvmsg(c.fd, c.in, nil, 0)
	}
	switch {
	case err != nil:
		return err
	case flags&unix.MSG_TRUNC != 0:
		return fmt.Errorf("a netlink message of more than %d bytes", len(c.in))
	}
	for h, data := range Messages(c.in[:n]) {
		if err := do(h, data); err != nil {
			return err
		}
	}
	return nil
}

// errno returns the error in an answer of type NLMSG_ERROR or NLMSG_DONE, nil for 0 or none.
func errno(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// tries is how often Retry lists. While 200 pods' veths are made as fast as the kernel can, about four of five
// lists of 400 links are interrupted (seen on 6.18); at 3 ms each, this many still take less time than the burst.
const tries = 50

// Retry calls list again while the kernel interrupts it because something changed meanwhile.
func Retry[T any](what string, list func() (T, error)) (items T, err error) {
	for range tries {
		if items, err = list(); !errors.Is(err, unix.EINTR) { // as netlink.ErrDumpInterrupted is, too
			break
		}
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("list %s: %w", what, err)
	}
	return items, nil
}

// IPNet returns p as the standard library's older type.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix returns n with its host bits.
func Prefix(n *net.IPNet) netip.Prefix {
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(Addr(n.IP), ones)
}

// Addr returns the address, the zero Addr if there is none. IPv4 in IPv6 is IPv4.
func Addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
