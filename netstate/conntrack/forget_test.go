package conntrack

import (
	"io"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestForget: entries of UDP are forgotten, and those of TCP that began in the middle of a connection, also behind a translated
// address; those that began with a SYN are not, and none of others.
func TestForget(t *testing.T) {
	inNamespace(t)
	serve(t)
	midway, err := net.Dial("tcp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer midway.Close()
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	if _, err := midway.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(midway, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	translated := connect(t, "tcp", "127.0.0.1:8")
	translated.To = netip.MustParseAddrPort("127.0.0.1:9")
	kept := map[Connection]bool{translated: true, connect(t, "tcp", "127.0.0.1:9"): true, connect(t, "tcp", "[::1]:9"): true,
		connect(t, "udp", "[::1]:9"): true}
	connect(t, "udp", "127.0.0.1:9")
	table, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for _, want := range []int{2, 0} {
		n, err := table.Forget([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")})
		if err != nil || n != want {
			t.Errorf("%d connections were forgotten, want %d: %v", n, want, err)
		}
	}
	if left := told(t, table); !maps.Equal(left, kept) {
		t.Errorf("there are %v, want %v", left, kept)
	}
}
