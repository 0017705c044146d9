package udp

import (
	"bytes"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/net/ipv6"
)

// TestSocket sends datagrams of several sizes to addresses of both families in turn: each arrives where it belongs, whole
// and in order, whether or not the kernel cuts them.
func TestSocket(t *testing.T) {
	for _, line := range [][]string{{"link", "set", "lo", "up"}, {"addr", "replace", "fd00::1/128", "dev", "lo", "nodad"}, {"addr", "replace", "fd00::2/128", "dev", "lo", "nodad"}} {
		if out, err := exec.Command("ip", line...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", line, err, out)
		}
	}
	if out, err := exec.Command("sh", "-c", "until ip -6 route get fd00::2 | grep -q ^local; do sleep 0.01; done").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out) // the kernel enters the route to an address a moment after the address
	}
	for _, segments := range []bool{true, false} {
		var senders [2]sender
		for i, is4 := range []bool{false, true} {
			s, err := listen(0, is4)
			if err != nil {
				t.Fatal(err)
			}
			defer s.conn.Close()
			if !s.segments {
				t.Fatal("this kernel does not cut datagrams: want Linux 4.18 or later")
			}
			s.segments = segments
			senders[i].socket = s
		}
		all := []string{"fd00::1", "127.0.0.2", "fd00::2", "127.0.0.1"}
		ends := make([]*net.UDPConn, len(all))
		for i, a := range all {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 0)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ends[i] = conn
		}
		sizes := []int{1200, 1200, 700, 1200, 1400, 1400, 1}
		for i, conn := range ends {
			to := conn.LocalAddr().(*net.UDPAddr)
			s := &senders[index(to.IP.To4() != nil)]
			for n, size := range sizes {
				s.add(bytes.Repeat([]byte{byte(16*i + n)}, size), to)
			}
			if want := map[bool]int{true: 3, false: len(sizes)}[segments]; len(s.messages) != want {
				t.Errorf("%d messages, want %d", len(s.messages), want)
			}
			s.flush(func(m ipv6.Message, err error) { t.Errorf("to %s: %v", m.Addr, err) })
		}
		for i, conn := range ends {
			for n, size := range sizes {
				buf := make([]byte, 2000)
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				got, err := conn.Read(buf)
				if err != nil || got != size || buf[0] != byte(16*i+n) {
					t.Fatalf("segments %t: %s got %d bytes of %#x, %v, want %d of %#x", segments, all[i], got, buf[0], err, size, 16*i+n)
				}
			}
		}
	}
}
