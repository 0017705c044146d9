package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/twill-net/twill/internal/echo"
)

// Asker sends requests of several protocols. Any answer counts: a node that drops echo requests refuses a connection, or a
// datagram to a closed port.
type Asker struct {
	From func(to netip.Addr) netip.Addr // this node's own address among its pods'; the zero Addr: the kernel chooses one
	MTU  func(to netip.Addr) int        // of pods' packets to the peer, in bytes; 0: not known
	Wait time.Duration                  // for one answer
}

// What is sent to a peer: echo requests, and if none is answered a connection to the kubelet's port and a datagram to
// traceroute's, to which nobody listens.
const (
	small      = 4 // echo requests of the smallest size
	full       = 3 // tries of the full size
	kubelet    = 10250
	traceroute = 33434
)

// Ask asks an address. A firewall on the way that refuses in the peer's name looks like the peer.
func (a Asker) Ask(ctx context.Context, to netip.Addr) Answer {
	answer, err := a.echo(ctx, to)
	if answer.RoundTrip > 0 || errors.As(err, new(ownError)) {
		return answer
	}
	if ctx.Err() != nil {
		return Answer{Err: ctx.Err()}
	}
	for _, knock := range []func(context.Context, netip.Addr) error{a.connect, a.send} {
		other := knock(ctx, to)
		if other == nil {
			return Answer{}
		}
		if err == nil {
			err = other
		}
	}
	if vtep := to.Prev(); a.answers(ctx, vtep) {
		return Answer{}
	}
	return Answer{Err: err}
}

// answers reports whether an address answers an echo request. flannel has no bridge before a node's first pod; the end of
// its tunnel, which has the first address of the subnet, answers then.
func (a Asker) answers(ctx context.Context, to netip.Addr) bool {
	a.MTU = func(netip.Addr) int { return 0 }
	answer, _ := a.echo(ctx, to)
	return answer.RoundTrip > 0
}

var errNoAnswer = errors.New("no answer to echo requests, nor by TCP or UDP")

// ownError is why a socket cannot be opened here.
type ownError struct{ error }

// echo sends echo requests. If none is answered, the error says why none was sent, or that there is no answer.
func (a Asker) echo(ctx context.Context, to netip.Addr) (Answer, error) {
	s, err := echo.Open(to, echo.Options{From: a.From(to), Limit: echo.DeviceMTU})
	if err != nil {
		own := fmt.Errorf("open a socket for echo requests from %s: %w", a.From(to), cause(err))
		return Answer{Own: own}, ownError{own}
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	answer := Answer{Sent: small}
	for n := 0; n < small && ctx.Err() == nil; n++ {
		took, lost := a.exchange(s, to, uint64(n), 0)
		switch {
		case lost != nil:
			answer.Lost, err = answer.Lost+1, lost
		case answer.RoundTrip == 0 || took < answer.RoundTrip:
			answer.RoundTrip = took
		}
	}
	if answer.RoundTrip == 0 {
		return Answer{}, err
	}
	if mtu := a.MTU(to); mtu > 0 && answer.Lost == 0 {
		answer.Full, answer.TooLarge = true, true
		for n := 0; n < full && answer.TooLarge && ctx.Err() == nil; n++ {
			_, err := a.exchange(s, to, uint64(small+n), mtu)
			answer.TooLarge = err != nil
		}
	}
	return answer, nil
}

// exchange sends a request in an IP packet of size bytes, and waits for the reply.
func (a Asker) exchange(s *echo.Socket, to netip.Addr, n uint64, size int) (time.Duration, error) {
	began := time.Now()
	if err := s.Send(to, n, size); err != nil {
		return 0, fmt.Errorf("send an echo request to %s: %w", to, cause(err))
	}
	if err := s.SetReadDeadline(began.Add(a.Wait)); err != nil {
		return 0, err
	}
	for {
		from, got, err := s.Receive()
		switch {
		case err != nil:
			return 0, errNoAnswer
		case from == to && got == n:
			return time.Since(began), nil
		}
	}
}

// connect returns nil if something answers a connection, if only to refuse it.
func (a Asker) connect(ctx context.Context, to netip.Addr) error {
	d := net.Dialer{Timeout: a.Wait, LocalAddr: &net.TCPAddr{IP: a.From(to).AsSlice()}}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", address(to, kubelet))
	if err == nil {
		_ = conn.Close()
	}
	return answered(err)
}

// send returns nil if something answers a datagram, if only to refuse it.
func (a Asker) send(ctx context.Context, to netip.Addr) error {
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: a.From(to).AsSlice()}}
	conn, err := d.DialContext(ctx, "udp", address(to, traceroute))
	if err != nil {
		return answered(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write([]byte{0}); err != nil {
		return answered(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(a.Wait)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return answered(err)
}

func address(to netip.Addr, port int) string {
	return net.JoinHostPort(to.String(), strconv.Itoa(port))
}

// answered returns nil if the error is a refusal, which a peer must have sent.
func answered(err error) error {
	var timeout net.Error
	switch {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED):
		return nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return errNoAnswer
	}
	return cause(err)
}

// cause returns the kernel's error without the names of sockets.
func cause(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}
