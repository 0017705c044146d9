package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// socket is an rtnetlink socket for what there are thousands of: neighbours, forwarding entries and routes. They are
// decoded from the receive buffer without a copy, and written many at a time. The formats are those of netlink(7) and
// rtnetlink(7).
type socket struct {
	fd   int
	port uint32 // its address
	seq  uint32
	in   []byte
	out  []byte
	// sent is the sequence number of the first request in out.
	sent uint32
}

const (
	// receiveBuffer takes the answers to a batch in which every request fails.
	receiveBuffer = 4 << 20
	// messageBuffer is more than the kernel puts into one message of a dump (32 kB).
	messageBuffer = 64 << 10
)

// openSocket opens a socket in the current network namespace.
func openSocket(timeout time.Duration) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	t := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)) // an error does not repeat the request
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		// Without the right to more, what the system allows is enough for most: lost answers are asked for again.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &socket{fd: fd, port: addr.(*unix.SockaddrNetlink).Pid, in: make([]byte, messageBuffer)}, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// header is struct nlmsghdr.
type header struct {
	size  uint32
	kind  uint16
	flags uint16
	seq   uint32
}

// receive calls do with each message of one datagram.
func (s *socket) receive(do func(header, []byte) error) error {
	n, _, flags, _, err := unix.Recvmsg(s.fd, s.in, nil, 0)
	if err != nil {
		return err
	}
	if flags&unix.MSG_TRUNC != 0 {
		return fmt.Errorf("a netlink message of more than %d bytes", len(s.in))
	}
	return messages(s.in[:n], do)
}

// messages calls do with each message in data.
func messages(data []byte, do func(header, []byte) error) error {
	for len(data) >= unix.SizeofNlMsghdr {
		h := header{binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint16(data[6:]), binary.NativeEndian.Uint32(data[8:])}
		if int(h.size) < unix.SizeofNlMsghdr || int(h.size) > len(data) {
			return fmt.Errorf("a netlink message of %d bytes in %d", h.size, len(data))
		}
		if err := do(h, data[unix.SizeofNlMsghdr:h.size]); err != nil {
			return err
		}
		data = data[min(aligned(int(h.size)), len(data)):]
	}
	return nil
}

func aligned(n int) int { return (n + 3) &^ 3 }

// errDone ends a dump.
var errDone = errors.New("done")

// list asks for all objects of a kind and calls do with each answer, which is valid during the call only; flags are
// those of a dump, and body is the fixed header of the request.
func (s *socket) list(kind, flags uint16, body []byte, do func([]byte) error) error {
	s.begin(kind, flags, body)
	seq := s.seq
	if err := s.send(); err != nil {
		return err
	}
	interrupted := false
	for {
		err := s.receive(func(h header, data []byte) error {
			switch {
			case h.seq != seq:
				return nil // of a dump that was given up
			case h.kind == unix.NLMSG_DONE, h.kind == unix.NLMSG_ERROR:
				interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
				return errors.Join(errDone, errno(data))
			}
			interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			return do(data)
		})
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, errDone) && interrupted:
			return netlink.ErrDumpInterrupted
		case err == nil:
		default:
			return withoutDone(err)
		}
	}
}

// withoutDone is err unless it is only the end.
func withoutDone(err error) error {
	var code unix.Errno
	if errors.Is(err, errDone) && !errors.As(err, &code) {
		return nil
	}
	return err
}

// errno is what an answer of type NLMSG_ERROR or NLMSG_DONE says, nil for 0.
func errno(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// begin starts a request in out; attributes follow, and end.
func (s *socket) begin(kind, flags uint16, body []byte) {
	s.seq++
	if len(s.out) == 0 {
		s.sent = s.seq
	}
	s.out = binary.NativeEndian.AppendUint32(s.out, uint32(unix.SizeofNlMsghdr+len(body)))
	s.out = binary.NativeEndian.AppendUint16(s.out, kind)
	s.out = binary.NativeEndian.AppendUint16(s.out, flags|unix.NLM_F_REQUEST)
	s.out = binary.NativeEndian.AppendUint32(s.out, s.seq)
	s.out = binary.NativeEndian.AppendUint32(s.out, 0)
	s.out = append(s.out, body...)
}

// attribute appends an attribute to the request that begins at start.
func (s *socket) attribute(start int, kind uint16, value []byte) {
	s.out = binary.NativeEndian.AppendUint16(s.out, uint16(unix.SizeofRtAttr+len(value)))
	s.out = binary.NativeEndian.AppendUint16(s.out, kind)
	s.out = append(s.out, value...)
	for len(s.out)%4 != 0 {
		s.out = append(s.out, 0)
	}
	binary.NativeEndian.PutUint32(s.out[start:], uint32(len(s.out)-start))
}

// send sends out, whole.
func (s *socket) send() error {
	defer func() { s.out = s.out[:0] }()
	return unix.Sendto(s.fd, s.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}
