package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
)

const word = "twill"

// Exchange sends a word from h to a server in another host, on an address and port of that, and waits for its answer. The
// network is "tcp" or "udp".
func (h Host) Exchange(ctx context.Context, to Host, network string, at netip.AddrPort) error {
	server, err := to.Echo(ctx, network, at)
	if err != nil {
		return err
	}
	defer server.Close()
	return h.Ask(ctx, network, at)
}

// Echo serves on an address and port of h: it answers what it gets with the same, until it is closed or ctx is done.
func (h Host) Echo(ctx context.Context, network string, at netip.AddrPort) (io.Closer, error) {
	server, err := h.echo(ctx, network, at)
	if err != nil {
		return nil, fmt.Errorf("serve %s %s in %s: %w", network, at, h.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	return closer(func() error {
		stop()
		return server.Close()
	}), nil
}

func (h Host) echo(ctx context.Context, network string, at netip.AddrPort) (io.Closer, error) {
	if network == "tcp" {
		l, err := h.Listen(ctx, at)
		if err == nil {
			go echoStreams(l)
		}
		return l, err
	}
	var conn net.PacketConn
	err := h.Do(func() (err error) {
		var l net.ListenConfig
		conn, err = l.ListenPacket(ctx, network, at.String())
		return err
	})
	if err == nil {
		go echoPackets(conn)
	}
	return conn, err
}

type closer func() error

func (c closer) Close() error { return c() }

func echoPackets(conn net.PacketConn) {
	b := make([]byte, 100)
	for {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(b[:n], from) // who asked may be gone
	}
}

func echoStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // until the other side closes
		}()
	}
}

// Ask sends a word to a server that answers with it.
func (h Host) Ask(ctx context.Context, network string, at netip.AddrPort) error {
	conn, err := h.Dial(ctx, network, at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, word); err != nil {
		return fmt.Errorf("send to %s from %s: %w", at, h.Name, err)
	}
	b := make([]byte, len(word))
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("wait for the answer of %s to %s: %w", at, h.Name, err)
	}
	if string(b) != word {
		return fmt.Errorf("%s answers %q to %s, want %q", at, b, h.Name, word)
	}
	return nil
}
