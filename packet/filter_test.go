package packet

import (
	"net"
	"testing"
	"time"
)

// TestOnlyICMP: other packets are left out in the kernel.
func TestOnlyICMP(t *testing.T) {
	tap, err := OpenTap()
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if err := tap.OnlyICMP(); err != nil {
		t.Fatal(err)
	}
	// Nobody listens there, so the kernel answers with an ICMP error.
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	count := map[string]int{}
	for deadline := time.Now().Add(5 * time.Second); count["icmp"] == 0 && time.Now().Before(deadline); {
		_, _ = conn.Write([]byte("x")) // the error of the one before
		if err := Wait([]*Tap{tap}, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		err := tap.Each(func(c Captured) error {
			_, isICMP := c.Decode().Last("icmp")
			count[map[bool]string{true: "icmp", false: "other"}[isICMP]]++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if count["icmp"] == 0 || count["other"] > 0 {
		t.Errorf("got %v", count)
	}
}
