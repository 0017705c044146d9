package plugin

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/echo"
	"github.com/twill-net/twill/internal/testwait"
)

// mustPing sends an ICMP echo request from the namespace from and waits for the reply.
func mustPing(t *testing.T, from string, to netip.Addr) {
	t.Helper()
	inside(t, from, func() error {
		s, err := echo.Open(to, echo.Options{})
		if err != nil {
			return err
		}
		defer s.Close()
		_ = s.SetReadDeadline(time.Now().Add(testwait.Limit))
		if err = s.Send(to, 1, 0); err == nil {
			_, _, err = s.Receive()
		}
		if err != nil {
			return fmt.Errorf("ping %s from %s: %w", to, from, err)
		}
		return nil
	})
}

// mustTalk sends a megabyte over TCP from one namespace to an address of another.
func mustTalk(t *testing.T, from, to string, addr netip.Addr) {
	t.Helper()
	var l net.Listener
	inside(t, to, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr.String(), "0"))
		return err
	})
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		n, _ := io.Copy(io.Discard, conn)
		received <- n
	}()
	inside(t, from, func() error {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), testwait.Limit)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(make([]byte, 1<<20))
		return err
	})
	if n := <-received; n != 1<<20 {
		t.Errorf("%d bytes arrived at %s, want %d", n, addr, 1<<20)
	}
}

// TestHairpin sends a frame of an experimental type to all from a pod and waits for the bridge to bring it
// back.
func TestHairpin(t *testing.T) {
	for _, on := range []bool{true, false} {
		n, pod := newNode(t, envV4), newNamespace(t)
		n.must("ADD", "a", pod, n.config(map[string]any{"delegate": map[string]any{"hairpinMode": on}}))
		if on {
			testwait.Until(t, "the pod's frame comes back", func() bool { return reflects(t, pod) })
			continue
		}
		for range 10 { // a busy machine's bridge may not forward at once
			if reflects(t, pod) {
				t.Fatal("without hairpinMode the pod's frame came back")
			}
		}
	}
}

// reflects sends a frame, and reports whether one comes back within a tenth of a second.
func reflects(t *testing.T, pod string) (back bool) {
	t.Helper()
	link, err := netlinkIn(t, pod).LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	const experimental = 0xb588 // ETH_P_802_EX1, 0x88b5 in network order
	inside(t, pod, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, experimental)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		timeout := unix.NsecToTimeval(int64(100 * time.Millisecond))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Protocol: experimental, Halen: 6,
			Addr: [8]byte{255, 255, 255, 255, 255, 255}}
		if err := unix.Sendto(fd, make([]byte, 64), 0, to); err != nil {
			return err
		}
		back, err = returned(fd)
		return err
	})
	return back
}

// returned reports whether a frame comes in that is not one that goes out.
func returned(fd int) (bool, error) {
	for {
		_, from, err := unix.Recvfrom(fd, make([]byte, 1500), 0)
		if err == unix.EAGAIN {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING {
			return true, nil
		}
	}
}
