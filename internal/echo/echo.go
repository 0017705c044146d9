// Package echo sends ICMP and ICMPv6 echo requests (RFC 792, RFC 4443) and hears the replies to them.
package echo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Limit says which packets a socket sends in fragments, and which are too large.
type Limit int

// The limits. A packet that is too large is the error EMSGSIZE.
const (
	NoLimit   Limit = iota // what is larger than the path's MTU is sent in fragments
	PathMTU                // what is larger than the path's MTU is too large
	DeviceMTU              // only what is larger than the device's MTU is, whatever the kernel learned about the path
)

// Set gives a socket the limit; to has its address family.
func (l Limit) Set(c syscall.RawConn, to netip.Addr) (err error) {
	if l == NoLimit {
		return nil
	}
	v4, v6 := unix.IP_PMTUDISC_DO, unix.IPV6_PMTUDISC_DO
	if l == DeviceMTU {
		v4, v6 = unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE
	}
	set := func(fd uintptr) {
		if to.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, v4)
			return
		}
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, v6),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}
	return errors.Join(c.Control(set), err)
}

// Options say how a Socket sends.
type Options struct {
	From   netip.Addr // the zero Addr: the kernel chooses one
	Others bool       // From may be another host's, which takes CAP_NET_ADMIN
	Limit  Limit
	Room   int // bytes that may wait for Receive; 0: what the kernel gives any socket
}

// transparent lets a socket send from an address that is not the namespace's.
func transparent(c syscall.RawConn, to netip.Addr) (err error) {
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if to.Is4() {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
}

// makeRoom lets so many bytes wait for a socket's reader. It gets whatever ICMP comes to the namespace.
func makeRoom(c syscall.RawConn, room int) (err error) {
	set := func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil { // only root of the machine may
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room)
		}
	}
	return errors.Join(c.Control(set), err)
}

// protocol is what tells the two families apart.
type protocol struct {
	network        string // as package net calls it
	number         int    // of IP
	request, reply icmp.Type
	headers        int // IP's and ICMP's, in bytes
}

var (
	icmp4 = protocol{"ip4:icmp", unix.IPPROTO_ICMP, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply, ipv4.HeaderLen + 8}
	icmp6 = protocol{"ip6:ipv6-icmp", unix.IPPROTO_ICMPV6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, ipv6.HeaderLen + 8}
)

func protocolOf(to netip.Addr) protocol {
	if to.Is4() {
		return icmp4
	}
	return icmp6
}

// Headers returns the size in bytes of the headers of IP and ICMP in a packet to an address.
func Headers(to netip.Addr) int { return protocolOf(to).headers }

// Socket sends echo requests of one address family, and hears the replies to them. One goroutine may send while another
// one receives.
type Socket struct {
	protocol
	conn net.PacketConn
	id   int
	buf  [1 << 16]byte
}

// Open opens a raw socket in the network namespace of the calling thread, for the address family of to.
func Open(to netip.Addr, o Options) (*Socket, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if o.Others {
			err = transparent(c, to)
		}
		if o.Room > 0 {
			err = errors.Join(err, makeRoom(c, o.Room))
		}
		return errors.Join(err, o.Limit.Set(c, to))
	}}
	s, from := &Socket{protocol: protocolOf(to), id: rand.IntN(1 << 16)}, ""
	if o.From.IsValid() {
		from = o.From.String()
	}
	var err error
	s.conn, err = lc.ListenPacket(context.Background(), s.network, from)
	return s, err
}

// Least is the size in bytes of the data of the smallest request: its number, since ICMP's own has only 16 bits.
const Least = 8

// Send sends request number n in an IP packet of size bytes; 0: the smallest.
func (s *Socket) Send(to netip.Addr, n uint64, size int) error {
	data := make([]byte, max(size-s.headers, Least))
	binary.BigEndian.PutUint64(data, n)
	return s.SendData(to, data)
}

// SendData sends a request with that data, of Least bytes or more.
func (s *Socket) SendData(to netip.Addr, data []byte) error {
	number := int(binary.BigEndian.Uint16(data[Least-2:]))
	m := icmp.Message{Type: s.request, Body: &icmp.Echo{ID: s.id, Seq: number, Data: data}}
	b, err := m.Marshal(nil) // the kernel fills in ICMPv6's checksum
	if err != nil {
		return fmt.Errorf("encode an echo request: %w", err)
	}
	_, err = s.conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
	return err
}

// SetReadDeadline sets when Receive gives up; the zero time is never.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

// Receive waits for the next reply to a request of this socket, and returns the request's number.
func (s *Socket) Receive() (from netip.Addr, n uint64, err error) {
	for {
		size, addr, err := s.conn.ReadFrom(s.buf[:])
		if err != nil {
			return netip.Addr{}, 0, err
		}
		if n, ok := s.decode(s.buf[:size]); ok {
			ip, _ := netip.AddrFromSlice(addr.(*net.IPAddr).IP)
			return ip.Unmap(), n, nil
		}
	}
}

func (s *Socket) decode(b []byte) (n uint64, ok bool) {
	m, err := icmp.ParseMessage(s.number, b)
	if err != nil || m.Type != s.reply {
		return 0, false
	}
	e, ok := m.Body.(*icmp.Echo)
	if !ok || e.ID != s.id || len(e.Data) < Least {
		return 0, false
	}
	return binary.BigEndian.Uint64(e.Data), true
}

// Close closes the socket, which would keep its namespace alive. It ends Receive.
func (s *Socket) Close() error { return s.conn.Close() }
