package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// Transfer is a TCP connection that carried data, as its receiver saw it.
type Transfer struct {
	Bytes int64
	Peer  netip.Addr // the sender's address at the receiver: another one than its own means that it was translated
	Took  time.Duration
}

// Dial opens a connection from inside the namespace.
func (h Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	err = h.Do(func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen opens a TCP listener inside the namespace.
func (h Host) Listen(ctx context.Context, at netip.AddrPort) (l net.Listener, err error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	err = h.Do(func() error {
		l, err = lc.Listen(ctx, "tcp", at.String())
		return err
	})
	return l, err
}

// Send sends size bytes to an address of another host over TCP, and returns what arrived there.
func (h Host) Send(ctx context.Context, to Host, addr netip.Addr, size int64) (Transfer, error) {
	l, err := to.Listen(ctx, netip.AddrPortFrom(addr, 0))
	if err != nil {
		return Transfer{}, fmt.Errorf("listen on %s in %s: %w", addr, to.Name, err)
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() { sent <- h.push(ctx, l, size) }()
	t, err := pull(ctx, l)
	if err = errors.Join(<-sent, err); err != nil {
		return t, fmt.Errorf("send %d bytes from %s to %s: %w", size, h.Name, addr, err)
	}
	if t.Bytes != size {
		return t, fmt.Errorf("send %d bytes from %s to %s: %d arrived", size, h.Name, addr, t.Bytes)
	}
	return t, nil
}

// push closes the listener when it cannot connect, so that the other side does not wait.
func (h Host) push(ctx context.Context, l net.Listener, size int64) error {
	conn, err := h.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		l.Close()
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, err = io.CopyN(conn, zeros{}, size)
	return err
}

func pull(ctx context.Context, l net.Listener) (Transfer, error) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	if err != nil {
		return Transfer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	started := time.Now()
	n, err := io.Copy(io.Discard, conn)
	peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	return Transfer{Bytes: n, Peer: peer, Took: time.Since(started)}, err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
