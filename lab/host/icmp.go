package host

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

	"github.com/twill-net/twill/netstate"
)

// echoSocket sends echo requests of one address family and hears the replies to them.
type echoSocket struct {
	conn   net.PacketConn
	family netstate.Family
	id     int
	buf    [65536]byte
}

// stampSize is the least payload: every request carries its number, since ICMP's own has only 16 bits.
const stampSize = 8

func (h Host) openEcho(f netstate.Family, dontFragment bool) (*echoSocket, error) {
	network, any := "ip6:ipv6-icmp", "::"
	if f == netstate.IPv4 {
		network, any = "ip4:icmp", "0.0.0.0"
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if dontFragment {
			return errors.Join(makeRoom(c), forbidFragments(c, f))
		}
		return makeRoom(c)
	}}
	s := &echoSocket{family: f, id: rand.IntN(1 << 16)}
	err := h.Do(func() (err error) {
		s.conn, err = lc.ListenPacket(context.Background(), network, any)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a raw socket in %s: %w", h.Name, err)
	}
	return s, nil
}

// makeRoom has a socket keep what comes while this program has no processor: a raw socket gets what all of the namespace's pings
// are answered, and what is asked.
func makeRoom(c syscall.RawConn) (err error) {
	const room = 4 << 20
	set := func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil { // only root of the machine may
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room)
		}
	}
	return errors.Join(c.Control(set), err)
}

// forbidFragments makes a packet that is larger than the path's MTU an error instead of several packets.
func forbidFragments(c syscall.RawConn, f netstate.Family) (err error) {
	set := func(fd uintptr) {
		if f == netstate.IPv4 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			return
		}
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}
	return errors.Join(c.Control(set), err)
}

// send sends request number n; size is that of the whole IP packet in bytes, 0: the smallest.
func (s *echoSocket) send(to netip.Addr, n uint64, size int) error {
	header, typ := 48, icmp.Type(ipv6.ICMPTypeEchoRequest) // IPv6 and ICMP header
	if s.family == netstate.IPv4 {
		header, typ = 28, ipv4.ICMPTypeEcho
	}
	data := make([]byte, max(size-header, stampSize))
	binary.BigEndian.PutUint64(data, n)
	m := icmp.Message{Type: typ, Body: &icmp.Echo{ID: s.id, Seq: int(n & 0xffff), Data: data}}
	b, err := m.Marshal(nil) // the kernel fills in ICMPv6's checksum
	if err != nil {
		return fmt.Errorf("encode an echo request: %w", err)
	}
	_, err = s.conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
	return err
}

// receive waits until the deadline for the next reply to a request of this socket.
func (s *echoSocket) receive(deadline time.Time) (from netip.Addr, n uint64, err error) {
	if err := s.conn.SetReadDeadline(deadline); err != nil {
		return netip.Addr{}, 0, err
	}
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

func (s *echoSocket) decode(b []byte) (uint64, bool) {
	proto, want := 58, icmp.Type(ipv6.ICMPTypeEchoReply)
	if s.family == netstate.IPv4 {
		proto, want = 1, ipv4.ICMPTypeEchoReply
	}
	m, err := icmp.ParseMessage(proto, b)
	if err != nil || m.Type != want {
		return 0, false
	}
	echo, ok := m.Body.(*icmp.Echo)
	if !ok || echo.ID != s.id || len(echo.Data) < stampSize {
		return 0, false
	}
	return binary.BigEndian.Uint64(echo.Data), true
}

func (s *echoSocket) close() { s.conn.Close() }
