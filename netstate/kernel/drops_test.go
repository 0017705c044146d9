package kernel

import (
	"net"
	"testing"

	"github.com/twill-net/twill/internal/testns"
)

// TestDrops: packets for which a VXLAN device has no FDB entry are counted, and devices that are gone are no error.
func TestDrops(t *testing.T) {
	testns.Enter(t, "ip link set lo up", "ip link add v1 type vxlan id 1 dstport 8472 local 127.0.0.1 nolearning", "ip link set v1 up",
		"ip addr add 192.0.2.1/24 dev v1", "ip neigh add 192.0.2.9 lladdr 0e:00:00:00:00:09 dev v1 nud permanent")
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	count := func() uint64 {
		t.Helper()
		all, err := k.Drops([]string{"gone", "v1"})
		if n, ok := all["v1"]; err == nil && ok && len(all) == 1 {
			return n
		}
		t.Fatalf("got %v, %v", all, err)
		return 0
	}
	before := count()
	conn, err := net.Dial("udp", "192.0.2.9:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		if _, err := conn.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
	}
	if dropped := count() - before; dropped < 3 {
		t.Errorf("%d packets were dropped, want three", dropped)
	}
}
