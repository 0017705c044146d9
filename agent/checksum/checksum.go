// Package checksum finds out whether packets arrive whose checksums the kernel leaves to a NIC. It needs nobody who
// listens: whoever gets a UDP datagram for a port that is closed answers it with an ICMP error, but only if the
// datagram's checksum is right.
package checksum

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Result is what a probe found.
type Result uint8

// The results.
const (
	Unknown Result = iota // there is no answer whoever computes the checksum: the node is away, or a firewall is silent
	Intact                // packets arrive
	Broken                // they arrive only if the kernel computes their checksums
)

const (
	port    = 33434 // traceroute's, to which nobody listens
	rounds  = 3
	timeout = time.Second // for one answer
)

// Probe sends datagrams to a node's end of the overlay, in turn with the checksum left to the NIC and computed by the
// kernel. Broken means that all of the one kind were answered, and none of the other.
func Probe(ctx context.Context, to netip.Addr) (Result, error) {
	for range rounds {
		for _, byKernel := range []bool{false, true} {
			answered, err := send(ctx, netip.AddrPortFrom(to, port), byKernel)
			switch {
			case err != nil:
				return Unknown, fmt.Errorf("probe the checksums of packets to %s: %w", to, err)
			case answered && !byKernel:
				return Intact, nil
			case !answered && byKernel:
				return Unknown, nil
			}
		}
	}
	return Broken, nil
}

// send sends one datagram and waits for the answer.
func send(ctx context.Context, to netip.AddrPort, byKernel bool) (answered bool, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", to.String())
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	udp, _ := conn.(*net.UDPConn)
	if err := write(udp, byKernel); err != nil {
		return false, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	_, err = conn.Read(make([]byte, 1))
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return !errors.Is(err, os.ErrDeadlineExceeded), nil
}

// write sends a datagram. The kernel itself computes the checksum of one that is put together from several writes, which
// is what a corked socket is for (__ip_append_data, seen on 6.18).
func write(conn *net.UDPConn, byKernel bool) error {
	if byKernel {
		if err := cork(conn, 1); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("twill checksum probe")); err != nil {
		return err
	}
	if byKernel {
		return cork(conn, 0)
	}
	return nil
}

func cork(conn *net.UDPConn, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_CORK, value)
	})
	return errors.Join(err, failed)
}
