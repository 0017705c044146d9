package main

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

// TestConnect: a client reaches the ports that are served, and no others.
func TestConnect(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("raw sockets are root's")
	}
	go func() { _ = serve(map[uint16]bool{9003: true}) }()
	for _, addr := range []string{"127.0.0.1:9003", "[::1]:9003"} {
		if err := connect(netip.MustParseAddrPort(addr), testwait.Limit); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if err := connect(netip.MustParseAddrPort("127.0.0.1:9004"), 300*time.Millisecond); !errors.Is(err, errTimeout) {
		t.Errorf("a port that nobody serves: %v", err)
	}
}

func TestArguments(t *testing.T) {
	for host, want := range map[string]string{
		"10.244.1.2:80":         "10.244.1.2:80",
		"[fd00:10:244:1::2]:80": "[fd00:10:244:1::2]:80",
		"localhost:80":          "127.0.0.1:80",
	} {
		to, timeout, ok := target([]string{host, "--timeout=3s", "--protocol=sctp"})
		if to != netip.MustParseAddrPort(want) || timeout != 3*time.Second || !ok {
			t.Errorf("%s: got %v, %v, %v", host, to, timeout, ok)
		}
	}
	for _, args := range [][]string{{"--protocol=tcp", "10.244.1.2:80"}, {"--protocol=sctp", "10.244.1.2:none"}} {
		if _, _, ok := target(args); ok {
			t.Errorf("%q is taken for SCTP to an address", args)
		}
	}
	if got := ports([]string{"A=b", "SERVE_SCTP_PORT_9003=foo"}); len(got) != 1 || !got[9003] {
		t.Errorf("got the ports %v", got)
	}
	if got := ports([]string{"SERVE_SCTP_PORT_9003=foo", "SERVE_PORT_80=foo"}); len(got) > 0 {
		t.Errorf("got the ports %v, and port 80 is TCP's", got)
	}
}
