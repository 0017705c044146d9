package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// inNamespace calls f in a network namespace of its own.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root: network namespaces are the real thing that is tested")
		}
		t.Skip("needs root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and the namespace end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestRequestsInOneWrite has the kernel refuse the second of three: the error says which, and the others are done.
func TestRequestsInOneWrite(t *testing.T) {
	inNamespace(t, func() error {
		n, err := OpenNode()
		if err != nil {
			return err
		}
		defer n.Close()
		lo, _, err := getLink(n.conn, "lo")
		if err != nil || lo == nil {
			return fmt.Errorf("link lo: %v, %w", lo, err)
		}
		bad := routeRequest(lo.Attrs().Index, Route{prefix("198.51.100.0/24"), netip.MustParseAddr("192.0.2.1")})
		failed, err := do(n.conn, addrRequest(lo.Attrs().Index, prefix("10.1.2.3/24")), bad, upRequest(lo.Attrs().Index))
		if failed != 1 || !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("request %d failed with %v, want request 1 with %v", failed, err, unix.ENETUNREACH)
		}
		if lo, _, err = getLink(n.conn, "lo"); err != nil || lo.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Error("the request after it was not done:", lo, err)
		}
		if missing, _, err := getLink(n.conn, "nosuch0"); missing != nil || err != nil {
			t.Error("link nosuch0:", missing, err)
		}
		return nil
	})
}

func TestBroadcast(t *testing.T) {
	for in, want := range map[string]string{"10.244.1.7/24": "10.244.1.255", "10.244.0.1/16": "10.244.255.255", "10.0.0.5/30": "10.0.0.7"} {
		if got := net.IP(broadcast(prefix(in))).String(); got != want {
			t.Errorf("broadcast of %s: %s, want %s", in, got, want)
		}
	}
}
