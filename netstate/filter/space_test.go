package filter

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// space is a network namespace that lives as long as its thread.
type space struct {
	path string
	work chan func()
}

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

// do runs f in the namespace; f must not end the test.
func (s *space) do(f func()) {
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
	sh(t, "nsenter --net="+s.path+" sh -e <<'END'\n"+ownIP()+command+"\nEND\n")
}

// dial connects from an address to another one; an error if that takes long.
func (s *space) dial(network string, from netip.Addr, to string) (conn net.Conn, err error) {
	s.do(func() {
		local := net.Addr(net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
		if network == "udp" {
			local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		d := net.Dialer{LocalAddr: local, Timeout: 300 * time.Millisecond, KeepAlive: -1}
		conn, err = d.Dial(network, to)
	})
	return conn, err
}

// echo answers whatever comes over TCP at an address with the same.
func (s *space) echo(t *testing.T, addr string) {
	t.Helper()
	var l net.Listener
	var err error
	s.do(func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 64)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					conn.Write(buffer[:n])
				}
			}()
		}
	}()
}

// answers reports whether what is written to conn comes back in time.
func answers(conn net.Conn, within time.Duration) bool {
	if _, err := conn.Write([]byte("x")); err != nil {
		return false
	}
	conn.SetReadDeadline(time.Now().Add(within))
	_, err := conn.Read(make([]byte, 64))
	return err == nil
}
