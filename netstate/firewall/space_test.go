package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// space is a network namespace that lives as long as its thread.
type space struct {
	path string
	work chan func()
}

// newSpace makes a namespace; home is the one of the test's own process.
func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		s.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		ready <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.work) })
	return s
}

func home() *space { return nil }

// do runs f in the namespace; f must not end the test.
func (s *space) do(f func()) {
	if s == nil {
		f()
		return
	}
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// sh runs shell commands in the namespace.
func (s *space) sh(t *testing.T, command string) {
	t.Helper()
	if s == nil {
		sh(t, command)
		return
	}
	sh(t, "nsenter --net="+s.path+" sh -e <<'END'\n"+command+"\nEND\n")
}

// shot is one datagram.
type shot struct {
	from, to *space
	src      string // invalid or empty: the kernel chooses
	dst      string
	mark     int
	dev      string // for multicast: the interface at both ends
	once     bool   // a packet that is lost is not sent again
}

// fire sends a datagram and returns the source address that the receiver saw; an error if none came.
func (s shot) fire() (string, error) {
	conn, err := s.listen()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	port := conn.LocalAddr().(*net.UDPAddr).Port
	tries, wait := 3, 150*time.Millisecond // the first ones may be lost to neighbour discovery
	if s.once {
		tries, wait = 1, 2*time.Second
	}
	for range tries {
		if err := s.send(port); err != nil {
			return "", err
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 64))
		if err == nil {
			return from.Addr().Unmap().WithZone("").String(), nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return "", err
		}
	}
	return "nothing", nil
}

func (s shot) listen() (conn *net.UDPConn, err error) {
	s.to.do(func() {
		dst := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s.dst), 0))
		if s.dev == "" {
			conn, err = net.ListenUDP("udp", dst)
			return
		}
		var dev *net.Interface
		if dev, err = net.InterfaceByName(s.dev); err == nil {
			dst.Port = 7777
			conn, err = net.ListenMulticastUDP("udp", dev, dst)
		}
	})
	return conn, err
}

func (s shot) send(port int) (err error) {
	s.from.do(func() {
		d := net.Dialer{ControlContext: s.options}
		if s.src != "" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s.src), 0))
		}
		var conn net.Conn
		if conn, err = d.Dial("udp", net.JoinHostPort(s.dst, fmt.Sprint(port))); err != nil {
			return
		}
		defer conn.Close()
		if _, err = conn.Write([]byte("hello")); errors.Is(err, syscall.EPERM) {
			err = nil // dropped by a rule on its way out: the receiver tells
		}
	})
	return err
}

func (s shot) options(_ context.Context, network, _ string, c syscall.RawConn) (err error) {
	c.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, s.mark); err != nil || s.dev == "" {
			return
		}
		var dev *net.Interface
		if dev, err = net.InterfaceByName(s.dev); err != nil {
			return
		}
		if network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, dev.Index)
			return
		}
		err = unix.SetsockoptIPMreqn(int(fd), unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(dev.Index)})
	})
	return err
}
