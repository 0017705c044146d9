package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"

	"github.com/twill-net/twill/backend/datagram"
	"github.com/twill-net/twill/netstate"
)

// bind is the sockets of WireGuard in the agent, one for each address family that this host has.
type bind struct {
	mu      sync.Mutex
	sockets map[netstate.Family]*datagram.Socket // empty: closed
	senders map[netstate.Family]*sync.Pool       // of *datagram.Sender; each of WireGuard's peers sends by a goroutine of its own
}

// receiveMessages is how many messages are taken at a time: their datagrams fit into one batch.
const receiveMessages = conn.IdealBatchSize / 64

// Open implements conn.Bind.
func (b *bind) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sockets) > 0 {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	b.sockets, b.senders = map[netstate.Family]*datagram.Socket{}, map[netstate.Family]*sync.Pool{}
	for _, f := range netstate.Families {
		s, err := datagram.Listen(int(port), f)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return nil, 0, errors.Join(err, b.close())
		}
		port = s.Port()
		b.sockets[f] = s
		b.senders[f] = &sync.Pool{New: func() any { return &datagram.Sender{Socket: s} }}
		receive = append(receive, receiver(s))
	}
	if len(receive) == 0 {
		return nil, 0, unix.EAFNOSUPPORT
	}
	return receive, port, nil
}

// receiver takes as many packets as came, each with whom to answer, from which address.
func receiver(s *datagram.Socket) conn.ReceiveFunc {
	r := datagram.NewReceiver(s, receiveMessages)
	return func(packets [][]byte, sizes []int, ends []conn.Endpoint) (n int, err error) {
		var last *endpoint // most of a batch comes from one peer
		err = r.Receive(func(packet []byte, from netip.AddrPort, at netip.Addr) {
			if n == len(packets) {
				return
			}
			if last == nil || last.to != from || *last.from.Load() != at {
				last = newEndpoint(from, at)
			}
			sizes[n], ends[n] = copy(packets[n], packet), last
			n++
		})
		return n, err
	}
}

// Close implements conn.Bind.
func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

func (b *bind) close() error {
	var errs []error
	for _, s := range b.sockets {
		errs = append(errs, s.Close())
	}
	b.sockets = nil
	return errors.Join(errs...)
}

// SetMark implements conn.Bind.
func (b *bind) SetMark(mark uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, s := range b.sockets {
		errs = append(
			errs,
			s.Control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)) }),
		)
	}
	return errors.Join(errs...)
}

// Send implements conn.Bind.
func (b *bind) Send(packets [][]byte, to conn.Endpoint) (err error) {
	e, ok := to.(*endpoint)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	f := netstate.FamilyOf(e.to.Addr())
	b.mu.Lock()
	socket, pool := b.sockets[f], b.senders[f]
	b.mu.Unlock()
	if socket == nil {
		return unix.EAFNOSUPPORT
	}
	s := pool.Get().(*datagram.Sender)
	if s.Socket != socket {
		s = &datagram.Sender{Socket: socket} // it was opened anew
	}
	defer pool.Put(s)
	for _, p := range packets {
		s.Add(p, e.addr, *e.from.Load())
	}
	s.Flush(func(to net.Addr, failed error) { err = errors.Join(err, fmt.Errorf("send to %s: %w", to, failed)) })
	return err
}

// ParseEndpoint implements conn.Bind.
func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	to, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, err
	}
	return newEndpoint(netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), netip.Addr{}), nil
}

// BatchSize implements conn.Bind.
func (b *bind) BatchSize() int { return conn.IdealBatchSize }

// endpoint is where a peer is, and the address of this host that it sends to, which it is to be answered from.
type endpoint struct {
	to   netip.AddrPort
	addr *net.UDPAddr // the same
	from atomic.Pointer[netip.Addr]
}

func newEndpoint(to netip.AddrPort, from netip.Addr) *endpoint {
	e := &endpoint{to: to, addr: net.UDPAddrFromAddrPort(to)}
	e.from.Store(&from)
	return e
}

// The methods of conn.Endpoint.

func (e *endpoint) ClearSrc()           { e.from.Store(&netip.Addr{}) }
func (e *endpoint) SrcIP() netip.Addr   { return *e.from.Load() }
func (e *endpoint) SrcToString() string { return e.SrcIP().String() }
func (e *endpoint) DstIP() netip.Addr   { return e.to.Addr() }
func (e *endpoint) DstToString() string { return e.to.String() }

// DstToBytes is the address as a peer's cookie is bound to it.
func (e *endpoint) DstToBytes() []byte {
	b, _ := e.to.MarshalBinary() // it never fails
	return b
}
