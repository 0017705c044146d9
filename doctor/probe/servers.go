package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/echo"
)

// streamSize is how many bytes a TCP probe sends each way: more than a window at its start.
const streamSize = 1 << 16

// servers answer TCP and UDP probes inside the receivers' namespaces, each on a port that is free there.
type servers struct {
	ctx context.Context

	mu  sync.Mutex
	tcp map[netip.Addr]net.Listener
	udp map[datagrams]net.PacketConn
}

// datagrams is what a UDP server is for: its answers are fragmented as what it gets.
type datagrams struct {
	addr  netip.Addr
	parts bool
}

func newServers(ctx context.Context) *servers {
	return &servers{ctx: ctx, tcp: map[netip.Addr]net.Listener{}, udp: map[datagrams]net.PacketConn{}}
}

func (s *servers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.tcp {
		_ = l.Close() // it has nothing to lose
	}
	for _, c := range s.udp {
		_ = c.Close()
	}
}

// stream returns the address of a TCP server that sends back as many bytes as it gets.
func (s *servers) stream(at watch.Place, addr netip.Addr) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.tcp[addr]; l != nil {
		return l.Addr().String(), nil
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	var l net.Listener
	err := at.Do(func() (err error) {
		l, err = lc.Listen(s.ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("listen in %s: %w", at.Host, cause(err))
	}
	s.tcp[addr] = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				setDeadline(s.ctx, conn)
				_, _ = io.CopyN(conn, conn, streamSize) // the sender tells what is missing
			}()
		}
	}()
	return l.Addr().String(), nil
}

// datagram returns the address of a UDP server that sends back what it gets.
func (s *servers) datagram(at watch.Place, of datagrams) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.udp[of]; c != nil {
		return c.LocalAddr().String(), nil
	}
	lc := net.ListenConfig{Control: of.control}
	var conn net.PacketConn
	err := at.Do(func() (err error) {
		conn, err = lc.ListenPacket(s.ctx, "udp", netip.AddrPortFrom(of.addr, 0).String())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("listen in %s: %w", at.Host, cause(err))
	}
	s.udp[of] = conn
	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteTo(buf[:n], from) // the sender tells what is missing
			}
		}
	}()
	return conn.LocalAddr().String(), nil
}

// stream connects, sends, and wants as much back.
func stream(ctx context.Context, s *servers, t Try) (port uint16, err error) {
	to, err := s.stream(t.To, t.Dst)
	if err != nil {
		return 0, err
	}
	return portOf(to), exchange(ctx, t, to)
}

// portOf returns the port of a server's address.
func portOf(server string) uint16 {
	to, _ := netip.ParseAddrPort(server) // the kernel has chosen it
	return to.Port()
}

// exchange connects to an address, sends, and wants as much back.
func exchange(ctx context.Context, t Try, to string) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: t.local()}}
	d.SetMultipathTCP(false)
	var conn net.Conn
	err := t.From.Do(func() (err error) {
		conn, err = d.DialContext(ctx, "tcp", to)
		return err
	})
	if err != nil {
		return fmt.Errorf("connect: %w", orNoAnswer(err))
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	go func() { _, _ = conn.Write(make([]byte, streamSize)) }() // what does not arrive does not come back
	if n, err := io.CopyN(io.Discard, conn, streamSize); err != nil {
		return fmt.Errorf("connected, and %d of %d bytes came back: %w", n, streamSize, stalledError{orNoAnswer(err)})
	}
	return nil
}

// stalledError is why a connection that was made did not carry all of its bytes.
type stalledError struct{ error }

func (e stalledError) Unwrap() error { return e.error }

// datagram sends one datagram, and wants it back.
func datagram(ctx context.Context, s *servers, t Try) (port uint16, err error) {
	to, err := s.datagram(t.To, t.datagrams())
	if err != nil {
		return 0, err
	}
	return portOf(to), exchangeDatagram(ctx, t, to)
}

func (t Try) datagrams() datagrams { return datagrams{t.Dst, t.Kind == UDPParts} }

// control forbids fragments on a socket, unless they are what it is for.
func (d datagrams) control(_, _ string, c syscall.RawConn) error {
	if d.parts {
		return nil
	}
	return echo.DeviceMTU.Set(c, d.addr)
}

// exchangeDatagram sends one datagram to an address, and wants it back.
func exchangeDatagram(ctx context.Context, t Try, to string) error {
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: t.local()}, Control: t.datagrams().control}
	var conn net.Conn
	err := t.From.Do(func() (err error) {
		conn, err = d.DialContext(ctx, "udp", to)
		return err
	})
	if err != nil {
		return fmt.Errorf("connect: %w", orNoAnswer(err))
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	data := make([]byte, t.dataSize())
	if _, err := conn.Write(data); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	return onlyAnswer(ctx, conn, func() (bool, error) {
		_, err := conn.Read(data)
		return true, err
	})
}

// orNoAnswer returns the kernel's error, or that there was no answer if it only took too long.
func orNoAnswer(err error) error {
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return errNoAnswer
	}
	return cause(err)
}
