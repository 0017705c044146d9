package kernel

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// TestLookup asks a namespace of its own where packets go: along a route, into a blackhole, and past a policy rule.
func TestLookup(t *testing.T) {
	pod := exec.CommandContext(t.Context(), "sleep", "60")
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pod.Process.Kill(), pod.Wait() })
	testns.Enter(t, "ip link set lo up", "ip link add b0 address 0e:00:00:00:00:01 type bridge", "ip link set b0 up",
		"ip addr add 192.0.2.1/24 dev b0",
		"ip route add 10.9.0.0/16 via 192.0.2.9", "ip route add blackhole 10.8.0.0/16",
		"ip route add prohibit 10.5.0.0/16",
		"ip route add 10.4.0.0/16 nexthop via 192.0.2.9 nexthop via 192.0.2.8",
		"ip rule add to 10.7.0.0/16 lookup 77 priority 50",
		"ip route add unreachable default table 77", "ip neigh add 192.0.2.9 lladdr 0e:00:00:00:00:09 dev b0 nud permanent",
		"ip link add here0 type veth peer name here1", "ip link set here0 master b0",
		fmt.Sprintf("ip link add pod0 type veth peer name eth0 netns %d", pod.Process.Pid), "ip link set pod0 master b0")
	mark := netstate.Port{Bridge: "b0", MTU: 1500, Pod: netstate.MAC{0x0a, 0x58, 0x0a, 0xf4, 1, 2}}.Alias()
	if out, err := exec.Command("ip", "link", "set", "pod0", "alias", mark).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	h, err := k.Lookup(netip.MustParseAddr("10.9.1.1"))
	if err != nil || h.Dev != "b0" || h.Via.String() != "192.0.2.9" || h.Src.String() != "192.0.2.1" {
		t.Errorf("a route: %+v, %v", h, err)
	}
	for dst, want := range map[string]string{"10.8.0.1": "blackhole", "10.7.0.1": "unreachable", "10.6.0.1": "no route"} {
		if h, err := k.Lookup(netip.MustParseAddr(dst)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", dst, h, err, want)
		}
	}
	if rules, err := k.Rules(); err != nil || len(rules) != 1 || !strings.Contains(rules[0], "10.7.0.0/16") {
		t.Errorf("rules %+v, %v", rules, err)
	}
	all, err := k.Neighbours()
	if err != nil || !slices.Contains(all, Neighbour{"b0", netip.MustParseAddr("192.0.2.9"), "0e:00:00:00:00:09",
		netstate.NeighPermanent}) {
		t.Errorf("neighbours %+v, %v", all, err)
	}
	routes, err := k.Routes()
	for _, want := range []Route{
		{"", netip.MustParsePrefix("10.9.0.0/16"), netip.MustParseAddr("192.0.2.9"), "b0"},
		{Type: "blackhole", Dst: netip.MustParsePrefix("10.8.0.0/16")},
		{Type: "prohibit", Dst: netip.MustParsePrefix("10.5.0.0/16")},
		{Dst: netip.MustParsePrefix("10.4.0.0/16")},
	} {
		if err != nil || !slices.Contains(routes, want) {
			t.Errorf("routes %+v, %v, want %+v", routes, err, want)
		}
	}
	ports, err := k.Ports()
	if err != nil {
		t.Error(err)
	}
	for _, want := range []Port{{Name: "b0", Up: true, MTU: 1500, NoCarrier: true},
		{Name: "here0", Master: "b0", MTU: 1500, NoCarrier: true}, {Name: "here1", MTU: 1500, NoCarrier: true},
		{Name: "pod0", Master: "b0", Pod: true, MTU: 1500, NoCarrier: true, PodMAC: "0a:58:0a:f4:01:02"}} {
		if !slices.Contains(ports, want) {
			t.Errorf("ports %+v, want %+v", ports, want)
		}
	}
}

// TestTakes: of a macvlan in passthru mode it is known whose packets it takes.
func TestTakes(t *testing.T) {
	testns.Enter(t, "ip link add b0 type bridge", "ip link add taker link b0 type macvlan mode passthru",
		"ip link add b1 type bridge", "ip link add guest link b1 type macvlan mode private")
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ports, err := k.Ports()
	if err != nil {
		t.Error(err)
	}
	for _, p := range ports {
		if want := map[string]string{"taker": "b0"}[p.Name]; p.Takes != want {
			t.Errorf("%s takes the packets of %q, want %q", p.Name, p.Takes, want)
		}
	}
}

// TestResolved: a neighbour that answered for its MAC is known, also by a link-local address. One that is written down has
// not answered, and one that does not answer is not known for long.
func TestResolved(t *testing.T) {
	const ns = "resolvetest"
	testns.Enter(t, "ip netns add "+ns, "ip link add r0 type veth peer name r1 netns "+ns, "ip addr add 192.0.2.1/24 dev r0", "ip link set r0 up",
		"ip -n "+ns+" addr add 192.0.2.2/24 dev r1", "ip -n "+ns+" addr add fe80::2/64 dev r1 nodad", "ip -n "+ns+" link set r1 up",
		"ip neigh add 192.0.2.9 lladdr 0e:00:00:00:00:09 dev r0 nud permanent")
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	ping := func(a string) { _ = exec.Command("ping", "-c", "1", "-W", "1", a).Run() }
	is := func(a string, want bool) {
		t.Helper()
		if got := Resolved(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %t, want %t", a, got, want)
		}
	}
	is("192.0.2.2", false)
	ping("192.0.2.2")
	is("192.0.2.2", true)
	testwait.Until(t, "fe80::2 to answer", func() bool { ping("fe80::2%r0"); return Resolved(netip.MustParseAddr("fe80::2%r0")) })
	is("fe80::2%lo", false)
	is("192.0.2.9", false)
	ping("192.0.2.77")
	is("192.0.2.77", false)
}
