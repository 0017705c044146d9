package plugin

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRequestsInOneWrite has the kernel refuse the second of three: the error says which, and the others are done.
func TestRequestsInOneWrite(t *testing.T) {
	inside(t, newNamespace(t), func() error {
		s, err := dialRTNL()
		if err != nil {
			return err
		}
		defer s.close()
		lo, err := s.link("lo")
		if err != nil || lo == nil {
			t.Fatal("link lo:", lo, err)
		}
		bad := routeRequest(lo.Attrs().Index, route{prefix("198.51.100.0/24"), netip.MustParseAddr("192.0.2.1")})
		failed, err := s.do(addrRequest(lo.Attrs().Index, prefix("10.1.2.3/24")), bad, upRequest(lo.Attrs().Index))
		if failed != 1 || !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("request %d failed with %v, want request 1 with %v", failed, err, unix.ENETUNREACH)
		}
		if lo, err = s.link("lo"); err != nil || lo.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Error("the request after it was not done:", lo, err)
		}
		if missing, err := s.link("nosuch0"); missing != nil || err != nil {
			t.Error("link nosuch0:", missing, err)
		}
		return nil
	})
}

func TestBroadcast(t *testing.T) {
	for in, want := range map[string]string{"10.244.1.7/24": "10.244.1.255", "10.244.0.1/16": "10.244.255.255", "10.0.0.5/30": "10.0.0.7"} {
		if got := broadcast(prefix(in)); got != netip.MustParseAddr(want) {
			t.Errorf("broadcast of %s: %s, want %s", in, got, want)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, _, payload, err := parseMessage(b)
		if err == nil && len(payload)+unix.SizeofNlMsghdr > len(b) {
			t.Errorf("a payload of %d bytes from %d", len(payload), len(b))
		}
		_ = errnoIn(kind, payload)
	})
}
