package probe

import (
	"context"
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

// The sizes in bytes of headers, and of the data of a packet that is not full.
const (
	ipv4Header, ipv6Header = 20, 40
	l4Header               = 8 // ICMP's, and UDP's
	smallData              = 32
)

// dataSize returns the size of the data after the ICMP or UDP header.
func (t Try) dataSize() int {
	header := ipv6Header
	if t.Dst.Is4() {
		header = ipv4Header
	}
	switch {
	case t.Kind == UDPParts:
		return t.Size // with its headers it does not fit
	case t.Kind.isFull():
		return max(smallData, t.Size-header-l4Header)
	}
	return smallData
}

var (
	errNoAnswer = errors.New("no answer")

	// ErrTwice says that nothing was lost, and that an answer came twice.
	ErrTwice = errors.New("answered more than once")
)

// request returns an echo request.
func (t Try) request() icmp.Message {
	m := icmp.Message{Type: ipv6.ICMPTypeEchoRequest,
		Body: &icmp.Echo{ID: rand.IntN(1 << 16), Seq: rand.IntN(1 << 16), Data: make([]byte, t.dataSize())}}
	if t.Dst.Is4() {
		m.Type = ipv4.ICMPTypeEcho
	}
	return m
}

// echo sends one echo request and waits for its reply.
func echo(ctx context.Context, t Try) error {
	network, reply, protocol := "ip6:ipv6-icmp", icmp.Type(ipv6.ICMPTypeEchoReply), unix.IPPROTO_ICMPV6
	if t.Dst.Is4() {
		network, reply, protocol = "ip4:icmp", ipv4.ICMPTypeEchoReply, unix.IPPROTO_ICMP
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return forbidFragments(c, t.Dst) }}
	address := ""
	if t.Bound {
		address = t.Src.String()
	}
	var conn net.PacketConn
	err := t.From.Do(func() (err error) {
		conn, err = lc.ListenPacket(ctx, network, address)
		return err
	})
	if err != nil {
		return fmt.Errorf("open a raw socket in %s: %w", t.From.Host, err)
	}
	defer conn.Close()
	request := t.request()
	data, err := request.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(data, &net.IPAddr{IP: t.Dst.AsSlice()}); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	asked, _ := request.Body.(*icmp.Echo)
	return onlyAnswer(ctx, conn, func(from net.Addr, data []byte) bool {
		m, err := icmp.ParseMessage(protocol, data)
		if err != nil || m.Type != reply || !isFrom(from, t.Dst) {
			return false
		}
		e, ok := m.Body.(*icmp.Echo)
		return ok && e.ID == asked.ID && e.Seq == asked.Seq
	})
}

// secondAnswer is how long another answer is waited for.
const secondAnswer = 20 * time.Millisecond

// onlyAnswer waits for an answer, and a little longer for another one, which there should not be.
func onlyAnswer(ctx context.Context, conn net.PacketConn, isAnswer func(from net.Addr, data []byte) bool) error {
	setDeadline(ctx, conn)
	err := error(errNoAnswer)
	for buf := make([]byte, 1<<16); ; {
		n, from, failure := conn.ReadFrom(buf)
		switch {
		case failure != nil && err == errNoAnswer:
			return orNoAnswer(failure)
		case failure != nil:
			return nil
		case !isAnswer(from, buf[:n]):
		case err == nil:
			return ErrTwice
		default:
			err = nil
			_ = conn.SetReadDeadline(time.Now().Add(secondAnswer))
		}
	}
}

// isFrom reports whether an answer is of the host that was asked.
func isFrom(from net.Addr, want netip.Addr) bool {
	ip, ok := from.(*net.IPAddr)
	if !ok {
		return false
	}
	a, _ := netip.AddrFromSlice(ip.IP)
	return a.Unmap() == want
}

// setDeadline ends reads when the context does. A socket that cannot have a deadline ends them at once.
func setDeadline(ctx context.Context, conn interface{ SetDeadline(time.Time) error }) {
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
}

// forbidFragments lets a packet that is larger than a device's MTU fail, and ignores what was learned about the
// path's.
func forbidFragments(c syscall.RawConn, to netip.Addr) (err error) {
	set := func(fd uintptr) {
		if to.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
			return
		}
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}
	return errors.Join(c.Control(set), err)
}

// cause returns the kernel's error without the addresses that Go adds.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
