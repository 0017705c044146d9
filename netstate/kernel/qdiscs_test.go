package kernel

import (
	"net"
	"slices"
	"testing"

	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
)

// TestQdiscs: a discipline that somebody attached is listed with its place and its drops, and the kernel's own are not.
func TestQdiscs(t *testing.T) {
	testns.Enter(t, "ip link add b0 type bridge", "ip link set b0 up", "ip addr add 192.0.2.1/24 dev b0",
		"ip link add v0 type veth peer name v1", "ip link set v0 up", "ip link set v0 master b0", "ip link set v1 up",
		"ip neigh add 192.0.2.9 lladdr 0e:00:00:00:00:09 dev b0 nud permanent",
		"tc qdisc add dev b0 root handle 7: tbf rate 1mbit burst 20 latency 1ms", "tc qdisc add dev v0 clsact")
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	conn, err := net.Dial("udp", "192.0.2.9:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var all []Qdisc
	testwait.Until(t, "packets that have no room are counted", func() bool {
		_, _ = conn.Write(make([]byte, 100)) // tbf reports some losses to the sender, and has none until the bridge has a carrier
		all, err = k.Qdiscs()
		return err != nil || slices.ContainsFunc(all, func(q Qdisc) bool { return q.Dev == "b0" && q.Drops >= 3 && q.Passed == 0 })
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, q := range all {
		got[q.Dev] = q.Kind + " " + q.Handle + " " + q.Hook
	}
	if len(got) != 2 || got["b0"] != "tbf 7: root" || got["v0"] != "clsact ffff: clsact" {
		t.Errorf("got %v", got)
	}
}

// TestQdiscHook: what is neither the root nor at the entry is named by its parent, as tc does.
func TestQdiscHook(t *testing.T) {
	if got := hook("pfifo", 0x10002); got != "parent 1:2" {
		t.Errorf("got %q", got)
	}
}
