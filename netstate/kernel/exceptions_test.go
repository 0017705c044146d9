package kernel

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestRouteExceptions has the kernel learn the path MTU of one destination behind a wanted route. It lists what it
// learned among the routes, with the route's protocol, and nobody can delete it.
func TestRouteExceptions(t *testing.T) {
	h := fresh(t)
	const router, far = "twk-router", "twk-far"
	cleanup := func() {
		for _, ns := range []string{router, far} {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	}
	cleanup()
	t.Cleanup(cleanup)
	for _, line := range []string{
		"ip netns add " + router, "ip netns add " + far,
		"ip link add a0 type veth peer name r0 netns " + router, "ip -n " + router +
			" link add r1 type veth peer name b0 netns " + far,
		"ip addr add fd01::1/64 dev a0 nodad", "ip addr add 10.1.0.1/24 dev a0", "ip link set a0 up",
		"ip -n " + router + " addr add fd01::2/64 dev r0 nodad", "ip -n " + router +
			" addr add 10.1.0.2/24 dev r0", "ip -n " + router + " link set r0 up",
		"ip -n " + router + " addr add fd02::2/64 dev r1 nodad", "ip -n " + router +
			" addr add 10.2.0.2/24 dev r1", "ip -n " + router + " link set r1 up mtu 1300",
		"ip netns exec " + router + " sysctl -q -w net.ipv6.conf.all.forwarding=1", "ip netns exec " + router +
			" sysctl -q -w net.ipv4.ip_forward=1",
		"ip -n " + far + " addr add fd02::1/64 dev b0 nodad", "ip -n " + far + " addr add 10.2.0.1/24 dev b0", "ip -n " +
			far + " link set b0 up mtu 1300",
		"ip -n " + far + " route add default via 10.2.0.2", "ip -n " + far + " -6 route add default via fd02::2",
		"ip route add fd02::/64 via fd01::2 dev a0 proto 116", "ip route add 10.2.0.0/24 via 10.1.0.2 dev a0 proto 116",
	} {
		if err := command(line); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"10.2.0.1", "fd02::1"} {
		_ = command("ping -q -c 3 -i 0.2 -W 1 -s 1400 -M do " + to) // the first one is refused, which teaches the kernel
	}
	learned, err := exec.Command("ip", "-6", "route", "show", "cache").CombinedOutput()
	if err != nil || !strings.Contains(string(learned), "mtu 1300") {
		t.Fatalf("the kernel has not learned the path's MTU: %s, %v", learned, err)
	}
	have, err := h.Kernel.Observe(t.Context(), netstate.State{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range have {
		if r, ok := o.(netstate.Route); ok && r.Dst.IsSingleIP() {
			t.Errorf("what the kernel learned is a route: %s", r)
		}
	}
}
