package datagram

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/twill-net/twill/backend/backendtest"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// addresses gives the loopback two IPv6 addresses beside ::1.
func addresses(t *testing.T) {
	t.Helper()
	for _, line := range [][]string{{"link", "set", "lo", "up"}, {"addr", "replace", "fd00::1/128", "dev", "lo", "nodad"}, {"addr", "replace", "fd00::2/128", "dev", "lo", "nodad"}} {
		if out, err := exec.Command("ip", line...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", line, err, out)
		}
	}
	if out, err := exec.Command("sh", "-c", "until ip -6 route get fd00::2 | grep -q ^local; do sleep 0.01; done").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out) // the kernel enters the route to an address a moment after the address
	}
}

func socket(t *testing.T, f netstate.Family) *Socket {
	t.Helper()
	s, err := Listen(0, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if !s.segments.Load() {
		t.Fatal("this kernel does not cut datagrams: want Linux 4.18 or later")
	}
	return s
}

func end(t *testing.T, addr string) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(testwait.Limit))
	return conn
}

var sizes = []int{1200, 1200, 700, 1200, 1400, 1400, 1}

// TestSend sends datagrams of several sizes to addresses of both families in turn: each arrives where it
// belongs, whole and in order, from the address that was asked for, whether or not the kernel cuts them.
func TestSend(t *testing.T) {
	addresses(t)
	for _, segments := range []bool{true, false} {
		senders := map[netstate.Family]*Sender{netstate.IPv6: {Socket: socket(t, netstate.IPv6)}, netstate.IPv4: {Socket: socket(t, netstate.IPv4)}}
		all := []string{"fd00::1", "127.0.0.2", "fd00::2", "127.0.0.1"}
		from := map[netstate.Family]netip.Addr{netstate.IPv6: netip.MustParseAddr("fd00::2"), netstate.IPv4: netip.MustParseAddr("127.0.0.9")}
		ends := make([]*net.UDPConn, len(all))
		for i, a := range all {
			ends[i] = end(t, a)
		}
		for i, conn := range ends {
			to := conn.LocalAddr().(*net.UDPAddr)
			f := netstate.FamilyOf(to.AddrPort().Addr())
			s := senders[f]
			s.segments.Store(segments)
			for n, size := range sizes {
				s.Add(bytes.Repeat([]byte{byte(16*i + n)}, size), to, from[f])
			}
			if want := map[bool]int{true: 3, false: len(sizes)}[segments]; len(s.messages) != want {
				t.Errorf("%d messages, want %d", len(s.messages), want)
			}
			s.Flush(func(to net.Addr, err error) { t.Errorf("to %s: %v", to, err) })
		}
		for i, conn := range ends {
			for n, size := range sizes {
				buf := make([]byte, 2000)
				got, peer, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil || got != size || buf[0] != byte(16*i+n) || peer.Addr().Unmap() != from[netstate.FamilyOf(peer.Addr().Unmap())] {
					t.Fatalf("segments %t: %s got %d bytes of %#x from %s, %v, want %d of %#x", segments, all[i], got, buf[0], peer, err, size, 16*i+n)
				}
			}
		}
	}
}

// TestSourceGone: an address that this host has no more is not a reason to send nothing.
func TestSourceGone(t *testing.T) {
	addresses(t)
	conn := end(t, "fd00::1")
	s := Sender{Socket: socket(t, netstate.IPv6)}
	for range 2 {
		s.Add([]byte("hello"), conn.LocalAddr().(*net.UDPAddr), netip.MustParseAddr("fd00::3"))
	}
	s.Flush(func(to net.Addr, err error) { t.Errorf("to %s: %v", to, err) })
	for range 2 {
		buf := make([]byte, 9)
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("got %q, %v", buf[:n], err)
		}
	}
}

// TestReceive: what came together is given one by one, with who sent it and to which address.
func TestReceive(t *testing.T) {
	addresses(t)
	for _, to := range []string{"fd00::2", "127.0.0.7"} {
		addr := netip.MustParseAddr(to)
		s, from := socket(t, netstate.FamilyOf(addr)), Sender{Socket: socket(t, netstate.FamilyOf(addr))}
		for n, size := range sizes {
			from.Add(bytes.Repeat([]byte{byte(n)}, size), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, s.Port())), netip.Addr{})
		}
		from.Flush(func(to net.Addr, err error) { t.Errorf("to %s: %v", to, err) })
		r, got := NewReceiver(s, 2), 0
		for got < len(sizes) {
			err := r.Receive(func(datagram []byte, peer netip.AddrPort, at netip.Addr) {
				if len(datagram) != sizes[got] || datagram[0] != byte(got) || peer.Port() != from.Port() || netstate.FamilyOf(peer.Addr()) != netstate.FamilyOf(addr) || at != addr {
					t.Errorf("%s got %d bytes of %#x from %s at %s, want %d of %#x", to, len(datagram), datagram[0], peer, at, sizes[got], got)
				}
				got++
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan error)
		go func() { ended <- r.Receive(func([]byte, netip.AddrPort, netip.Addr) {}) }()
		s.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed socket says %v", err)
		}
	}
}

func FuzzParseControl(f *testing.F) {
	f.Add(appendSegmentSize(appendSource(nil, netip.MustParseAddr("192.0.2.1")), 1400))
	f.Add(appendSource(nil, netip.MustParseAddr("fd00::1")))
	f.Fuzz(func(_ *testing.T, oob []byte) { parseControl(oob) })
}
