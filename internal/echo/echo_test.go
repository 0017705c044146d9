package echo_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/echo"
	"github.com/twill-net/twill/internal/testns"
)

// TestEcho sends to loopback: small requests and full ones are answered by their numbers, and what is larger than the
// device's MTU is an error with a limit only.
func TestEcho(t *testing.T) {
	const mtu = 9000
	for name, to := range map[string]netip.Addr{"IPv4": netip.MustParseAddr("127.0.0.1"), "IPv6": netip.IPv6Loopback()} {
		t.Run(name, func(t *testing.T) {
			testns.Enter(t, "ip link set lo up mtu 9000")
			for _, limit := range []echo.Limit{echo.NoLimit, echo.PathMTU, echo.DeviceMTU} {
				s := open(t, to, echo.Options{From: to, Limit: limit})
				for n, size := range []int{0, 0, mtu} {
					if err := s.Send(to, 1<<40+uint64(n), size); err != nil {
						t.Fatal(err)
					}
					if from, got, err := s.Receive(); err != nil || from != to || got != 1<<40+uint64(n) {
						t.Errorf("request %d of %d bytes: got %d from %s, %v", n, size, got, from, err)
					}
				}
			}
		})
	}
}

// TestTooLarge: a packet larger than the MTU goes in fragments, or is an error.
func TestTooLarge(t *testing.T) {
	testns.Enter(t, "ip link set lo up mtu 1400")
	to := netip.MustParseAddr("127.0.0.1")
	for limit, want := range map[echo.Limit]error{echo.NoLimit: nil, echo.PathMTU: unix.EMSGSIZE, echo.DeviceMTU: unix.EMSGSIZE} {
		s := open(t, to, echo.Options{Limit: limit})
		if err := s.Send(to, 1, 1401); !errors.Is(err, want) {
			t.Errorf("limit %d: got %v, want %v", limit, err, want)
		}
		if want != nil {
			continue
		}
		if _, _, err := s.Receive(); err != nil {
			t.Errorf("the request in fragments: %v", err)
		}
	}
}

// TestOthers: a socket may send in the name of another host only if it is told to.
func TestOthers(t *testing.T) {
	testns.Enter(t, "ip link set lo up")
	to, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7")
	if s, err := echo.Open(to, echo.Options{From: other}); err == nil {
		s.Close()
		t.Errorf("a socket with the address %s of nobody here was opened", other)
	}
	s := open(t, to, echo.Options{From: other, Others: true})
	if err := s.SendData(to, []byte("eight by")); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENETUNREACH) {
		t.Error(err)
	}
}

func open(t *testing.T, to netip.Addr, o echo.Options) *echo.Socket {
	t.Helper()
	s, err := echo.Open(to, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return s
}
