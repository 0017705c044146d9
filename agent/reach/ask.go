package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/twill-net/twill/internal/echo"
)

// Asker sends requests of several protocols. Any answer counts: a node that drops echo requests refuses a connection, or a
// datagram to a closed port.
type Asker struct {
	From func(to netip.Addr) netip.Addr // this node's own address among its pods'; the zero Addr: the kernel chooses one
	MTU  func(to netip.Addr) int        // of pods' packets to the peer, in bytes; 0: not known
	Wait time.Duration                  // for one answer
	// Resolved reports whether the kernel has the MAC of an address of the underlay, as it was answered lately.
	Resolved func(netip.Addr) bool
}

// What is sent to a peer: echo requests, and if none is answered a connection to the kubelet's port and a datagram to
// traceroute's, to which nobody listens. An API server and a DNS are asked as often as for echo replies.
const (
	small      = 4 // echo requests of the smallest size
	full       = 3 // tries of the full size
	kubelet    = 10250
	traceroute = 33434
)

// Ask asks an address. A firewall on the way that refuses in the peer's name looks like the peer.
func (a Asker) Ask(ctx context.Context, what Kind, to netip.AddrPort) Answer {
	if what != Node {
		a.From, a.MTU = func(netip.Addr) netip.Addr { return netip.Addr{} }, func(netip.Addr) int { return 0 }
	}
	var err error
	if what == Node || what == Gateway {
		var answer Answer
		answer, err = a.echo(ctx, to.Addr())
		if answer.RoundTrip > 0 || errors.As(err, new(ownError)) {
			return answer
		}
	}
	for _, knock := range a.knocks(what) {
		if ctx.Err() != nil {
			return Answer{Err: ctx.Err()}
		}
		other := knock(ctx, to)
		switch {
		case other == nil:
			return Answer{}
		case err == nil && isOwn(other):
			return Answer{Own: other}
		case err == nil:
			err = other
		}
	}
	if errors.Is(err, errNoAnswer) {
		err = fmt.Errorf("%w %s", err, tried[what])
	}
	return Answer{Err: err}
}

// isOwn reports whether an error is that this machine has run out of something.
func isOwn(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
		syscall.EADDRINUSE, syscall.EADDRNOTAVAIL}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// tried is in vain where an address does not answer.
var tried = map[Kind]string{Node: "to echo requests, nor by TCP or UDP", Gateway: "to echo requests, nor for its MAC",
	API: "by TCP", DNS: "to a question"}

type knock func(context.Context, netip.AddrPort) error

// knocks are what is tried, one after another, where no echo request is answered.
func (a Asker) knocks(what Kind) []knock {
	switch what {
	case Gateway:
		return []knock{a.resolved}
	case API:
		return slices.Repeat([]knock{a.connect}, small)
	case DNS:
		return slices.Repeat([]knock{a.question}, small)
	}
	return []knock{a.connect, a.refuse, a.vtep}
}

// vtep asks for an echo reply in the peer's place. flannel has no bridge before a node's first pod; the end of its tunnel,
// which has the first address of the subnet, answers then.
func (a Asker) vtep(ctx context.Context, peer netip.AddrPort) error {
	a.MTU = func(netip.Addr) int { return 0 }
	_, err := a.echo(ctx, peer.Addr().Prev())
	return err
}

// resolved: who drops echo requests, as many routers do, has answered for its MAC.
func (a Asker) resolved(_ context.Context, to netip.AddrPort) error {
	if a.Resolved(to.Addr()) {
		return nil
	}
	return errNoAnswer
}

// question returns nil if a DNS server answers, whatever it says. It does not refuse a datagram: its node does.
func (a Asker) question(ctx context.Context, to netip.AddrPort) error {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1},
		Questions: []dnsmessage.Question{{Name: version, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassCHAOS}}}
	packed, err := m.Pack()
	if err == nil {
		err = a.send(ctx, to, packed)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errRefused
	}
	return answered(err)
}

var errRefused = errors.New("refused, as by a Service without endpoints")

// version is a name to which a DNS server says something by itself, without asking others.
var version = dnsmessage.MustNewName("version.bind.")

var errNoAnswer = errors.New("no answer")

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
		case from == to.WithZone("") && got == n:
			return time.Since(began), nil
		}
	}
}

// port returns the address with the usual port if it has none.
func port(to netip.AddrPort, usual uint16) string {
	return netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), usual)).String()
}

// connect returns nil if something answers a connection, if only to refuse it.
func (a Asker) connect(ctx context.Context, to netip.AddrPort) error {
	d := net.Dialer{Timeout: a.Wait, LocalAddr: &net.TCPAddr{IP: a.From(to.Addr()).AsSlice()}}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", port(to, kubelet))
	if err == nil {
		_ = conn.Close()
	}
	return answered(err)
}

// refuse returns nil if something answers a datagram, if only to refuse it.
func (a Asker) refuse(ctx context.Context, to netip.AddrPort) error {
	return answered(a.send(ctx, to, []byte{0}))
}

// send returns nil if a datagram answers a datagram.
func (a Asker) send(ctx context.Context, to netip.AddrPort, data []byte) error {
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: a.From(to.Addr()).AsSlice()}}
	conn, err := d.DialContext(ctx, "udp", port(to, traceroute))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(data); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(a.Wait)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
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
