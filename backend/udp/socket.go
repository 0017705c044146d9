package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// socket is the UDP socket of one address family. It is not wireguard-go's conn.StdNetBind because that sends IPv6 datagrams
// to wrong addresses once it has sent an IPv4 one (seen in its version of 2026-05-22), and copies what it sends together.
type socket struct {
	conn  *net.UDPConn
	batch *ipv6.PacketConn // for both families: it only wraps sendmmsg and recvmmsg
	is4   bool
	// segments says whether the kernel cuts what is sent into datagrams (UDP_SEGMENT, Linux 4.18).
	segments bool
}

// socketBuffer is what is asked for in each direction, in bytes: a burst must not get lost while the other side of the proxy
// is at work. The kernel gives what net.core.[rw]mem_max allow, or all of it to root.
const socketBuffer = 7 << 20

// listen opens the socket on all addresses of a family.
func listen(port int, is4 bool) (*socket, error) {
	network, addr := "udp6", netip.IPv6Unspecified()
	if is4 {
		network, addr = "udp4", netip.IPv4Unspecified()
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(port))))
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, batch: ipv6.NewPacketConn(conn), is4: is4}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { s.prepare(int(fd)) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set the socket's options: %w", err), conn.Close())
	}
	return s, nil
}

// prepare asks for what makes it faster; a kernel that refuses is served without.
func (s *socket) prepare(fd int) {
	for _, force := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer)
	}
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	s.segments = err == nil
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
}

// The most that one message to the kernel may hold: datagrams (UDP_MAX_SEGMENTS), and bytes.
const maxSegments, maxMessage = 64, 65000

// sender collects packets for one peer, as few messages.
type sender struct {
	*socket
	messages []ipv6.Message
	size     int // of the datagrams of the last message, but for its last one; 0: it takes no more
	bytes    int // in the last message
}

// add takes a packet, which must not change before flush. Packets of one size go into one message; a shorter one ends it.
func (s *sender) add(packet []byte, to *net.UDPAddr) {
	if last := len(s.messages) - 1; last >= 0 && s.segments && s.size > 0 && len(packet) <= s.size &&
		s.messages[last].Addr == net.Addr(to) && s.bytes+len(packet) <= maxMessage && len(s.messages[last].Buffers) < maxSegments {
		m := &s.messages[last]
		m.Buffers = append(m.Buffers, packet)
		s.bytes += len(packet)
		if len(m.Buffers) == 2 {
			m.OOB = segmentSize(m.OOB, uint16(s.size))
		}
		if len(packet) < s.size {
			s.size = 0
		}
		return
	}
	s.messages = s.next()
	m := &s.messages[len(s.messages)-1]
	m.Buffers, m.OOB, m.Addr = append(m.Buffers[:0], packet), m.OOB[:0], to
	s.size, s.bytes = len(packet), len(packet)
}

// next makes room for a message, with the memory of an earlier one.
func (s *sender) next() []ipv6.Message {
	if n := len(s.messages); n < cap(s.messages) {
		return s.messages[:n+1]
	}
	return append(s.messages, ipv6.Message{})
}

// segmentSize is the control message that says how long the datagrams are (linux/udp.h: UDP_SEGMENT).
func segmentSize(oob []byte, size uint16) []byte {
	space := unix.CmsgSpace(2)
	if cap(oob) < space {
		oob = make([]byte, space)
	}
	oob = oob[:space]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&oob[unix.CmsgLen(0)])) = size
	return oob
}

// flush sends everything. failed gets each message's error; the others go all the same.
func (s *sender) flush(failed func(ipv6.Message, error)) {
	for rest := s.messages; len(rest) > 0; {
		n, err := s.batch.WriteBatch(rest, 0)
		if err != nil {
			failed(rest[0], err)
			n = max(n, 1)
		}
		rest = rest[n:]
	}
	s.messages = s.messages[:0]
}

// datagramSize is how long the datagrams of a received message are, 0 if it is one.
func datagramSize(oob []byte) int {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4 {
			return int(*(*int32)(unsafe.Pointer(&data[0])))
		}
		oob = rest
	}
	return 0
}
