package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/watch"
)

// call is one connection, or one exchange of datagrams.
type call struct {
	From watch.Place
	Src  netip.Addr
	Kind probe.Kind
	To   netip.AddrPort
}

// answer is what came of a call.
type answer struct {
	call
	local   netip.AddrPort // the client's
	outcome service.Outcome
	text    string
	conn    io.Closer // nil: there is none
}

// patience is how long an answer may take. A connection's first packet is repeated only after a second.
const patience = 500 * time.Millisecond

// make connects, and with datagrams asks.
func (c call) make(ctx context.Context) (a answer) {
	a.call = c
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		a.local, err = bind(raw, c.Src) // here, so that the port is known of a connection that fails, too
		return err
	}}
	d.SetMultipathTCP(false)
	network := "udp"
	if c.Kind == probe.TCP {
		network = "tcp"
	}
	var conn net.Conn
	err := c.From.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, c.To.String())
		return err
	})
	if err == nil {
		a.conn = conn
		err = c.ask(ctx, conn)
	}
	a.outcome, a.text = outcomeOf(err)
	return a
}

// bind gives a socket the client's address and a port, and returns both.
func bind(raw syscall.RawConn, src netip.Addr) (local netip.AddrPort, err error) {
	control := raw.Control(func(fd uintptr) {
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: src.As16()}
		if src.Is4() {
			to = &unix.SockaddrInet4{Addr: src.As4()}
		}
		if err = unix.Bind(int(fd), to); err != nil {
			err = fmt.Errorf("bind to %s: %w", src, err)
			return
		}
		bound, nameErr := unix.Getsockname(int(fd))
		err = nameErr
		switch bound := bound.(type) {
		case *unix.SockaddrInet4:
			local = netip.AddrPortFrom(src, uint16(bound.Port))
		case *unix.SockaddrInet6:
			local = netip.AddrPortFrom(src, uint16(bound.Port))
		}
	})
	return local, errors.Join(control, err)
}

// ask sends a datagram and waits for an answer. A TCP connection that stands is answer enough.
func (c call) ask(ctx context.Context, conn net.Conn) error {
	if c.Kind == probe.TCP {
		return nil
	}
	question := []byte("twill\n")
	if c.Kind == probe.DNS {
		var err error
		if question, err = probe.Question(); err != nil {
			return err
		}
	}
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
	}
	if _, err := conn.Write(question); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1<<12))
	return err
}

func outcomeOf(err error) (service.Outcome, string) {
	var timeout net.Error
	switch {
	case err == nil:
		return service.Answered, ""
	case errors.Is(err, unix.ECONNREFUSED):
		return service.Refused, "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return service.Silent, string(service.Silent)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return service.Unreachable, err.Error()
}
