// Package datagram has the UDP sockets of backends that move packets themselves: many datagrams at a time, cut and put
// together by the kernel where it can.
package datagram

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Socket is the UDP socket of one address family. It is not wireguard-go's conn.StdNetBind because that
// sends IPv6 datagrams to wrong addresses once it has sent an IPv4 one (seen in its version of 2026-05-22),
// and copies what it sends together.
type Socket struct {
	conn   *net.UDPConn
	batch  *ipv6.PacketConn // for both families: it only wraps sendmmsg and recvmmsg
	family netstate.Family
	// segments reports whether the kernel cuts what is sent into datagrams (UDP_SEGMENT, Linux 4.18).
	segments atomic.Bool
}

// bufferSize is what is asked for in each direction, in bytes: a burst must not get lost while the other
// side of the proxy is at work. The kernel gives what net.core.[rw]mem_max allow, or all of it to root.
const bufferSize = 7 << 20

// Listen opens the socket on all addresses of a family; port 0 is any.
func Listen(port int, f netstate.Family) (*Socket, error) {
	network, addr := "udp6", netip.IPv6Unspecified()
	if f == netstate.IPv4 {
		network, addr = "udp4", netip.IPv4Unspecified()
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(port))))
	if err != nil {
		return nil, err
	}
	s := &Socket{conn: conn, batch: ipv6.NewPacketConn(conn), family: f}
	if err := s.Control(s.prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("set the socket's options: %w", err), conn.Close())
	}
	return s, nil
}

// prepare asks for what makes it faster; a kernel that refuses is served without. To which of this host's addresses a
// datagram was sent is told too.
func (s *Socket) prepare(fd int) error {
	for _, force := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bufferSize)
	}
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	s.segments.Store(err == nil)
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	if s.family == netstate.IPv4 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
}

// Control calls f with the socket's descriptor.
func (s *Socket) Control(f func(fd int) error) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(failed, err)
}

// Port is the UDP port that it listens on.
func (s *Socket) Port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// Close ends a Receive that waits, which returns net.ErrClosed.
func (s *Socket) Close() error { return s.conn.Close() }
