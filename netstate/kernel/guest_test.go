package kernel

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestConnectedRouteOfOthers: the network of another device is its own, also where a lease or a peer has the same: what
// is ours goes behind it, and goes alone.
func TestConnectedRouteOfOthers(t *testing.T) {
	for _, c := range []struct{ name, addr, subnet, gateway string }{
		{"IPv4", "10.244.1.9/24", "10.244.1.0/24", "10.244.1.1/24"},
		{"IPv6", "fd00:1::9/64", "fd00:1::/64", "fd00:1::1/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := fresh(t)
			k := h.Kernel.(*Kernel)
			run(t, h, "ip link add lan0 type bridge", "ip link set lan0 up", "ip link add p0 type veth peer name p1",
				"ip link set p0 master lan0 up", "ip link set p1 up", "ip addr add "+c.addr+" dev lan0 nodad")
			before := show(t, c.subnet, "lan0")
			gateway := netip.MustParsePrefix(c.gateway)
			want := netstate.NewState(
				netstate.Bridge{Name: "cni0", MTU: 1450, MAC: netstate.MAC{2, 0, 0, 0, 0, 1}, Up: true, Marked: true},
				netstate.Addr{Dev: "cni0", Prefix: gateway, NoDAD: gateway.Addr().Is6()}, netstate.ConnectedRoute("cni0", gateway))
			settle(t, k, want)
			if now := show(t, c.subnet, "lan0"); now != before || before == "" {
				t.Errorf("lan0's route was %q, is %q", before, now)
			}
			run(t, h, "ip route del "+c.subnet+" dev cni0")
			settle(t, k, want) // the kernel does not make it again, and the slot is taken
			if show(t, c.subnet, "cni0") == "" || show(t, c.subnet, "lan0") != before {
				t.Errorf("after cni0's route was deleted there are %q and %q", show(t, c.subnet, "cni0"), show(t, c.subnet, "lan0"))
			}
			settle(t, k, netstate.State{})
			if now := show(t, c.subnet, "lan0"); now != before {
				t.Errorf("at the end lan0's route is %q", now)
			}
		})
	}
}

// TestRouteBeforeConnectedOne: a route of ours that is older than another device's network stays before it when it changes,
// and what is new goes behind it. The network keeps its own route.
func TestRouteBeforeConnectedOne(t *testing.T) {
	h := fresh(t)
	k := h.Kernel.(*Kernel)
	run(t, h, "ip link add up0 type bridge", "ip addr add 192.0.2.1/24 dev up0", "ip link set up0 up", "ip link add lan0 type bridge",
		"ip link add p0 type veth peer name p1", "ip link set p0 master lan0 up", "ip link set p1 up")
	to := func(gateway string) netstate.State {
		return netstate.NewState(netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr(gateway), Dev: "up0",
			Protocol: netstate.Protocol})
	}
	routed := func(when string, want ...string) {
		t.Helper()
		out, err := exec.Command("ip", "-4", "route", "show", "10.244.2.0/24").Output()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			_, dev, _ := strings.Cut(line, " dev ")
			got = append(got, strings.Fields(dev)[0])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s the routes lead to %v, want %v:\n%s", when, got, want, out)
		}
	}
	settle(t, k, to("192.0.2.2"))
	run(t, h, "ip link set lan0 up", "ip addr add 10.244.2.99/24 dev lan0")
	routed("at first", "up0", "lan0")
	settle(t, k, to("192.0.2.3"))
	routed("after a change", "up0", "lan0")
	run(t, h, "ip route del 10.244.2.0/24 dev up0")
	settle(t, k, to("192.0.2.3"))
	routed("after a loss", "lan0", "up0")
	settle(t, k, to("192.0.2.2"))
	routed("after a change of what is behind", "lan0", "up0")
	settle(t, k, netstate.State{})
	routed("at the end", "lan0")
}

// TestForgedConnectedRoute: a route that only says that the kernel made it is in our way, and goes.
func TestForgedConnectedRoute(t *testing.T) {
	h := fresh(t)
	k := h.Kernel.(*Kernel)
	run(t, h, "ip link add lan0 type bridge", "ip link set lan0 up", "ip addr add 192.0.2.1/24 dev lan0")
	gateway := netip.MustParsePrefix("10.244.1.1/24")
	want := netstate.NewState(
		netstate.Bridge{Name: "cni0", MTU: 1450, MAC: netstate.MAC{2, 0, 0, 0, 0, 1}, Up: true, Marked: true},
		netstate.Addr{Dev: "cni0", Prefix: gateway}, netstate.ConnectedRoute("cni0", gateway))
	settle(t, k, want)
	run(t, h, "ip route replace 10.244.1.0/24 dev lan0 proto kernel")
	settle(t, k, want)
	if show(t, "10.244.1.0/24", "cni0") == "" || show(t, "10.244.1.0/24", "lan0") != "" {
		t.Errorf("there are %q and %q", show(t, "10.244.1.0/24", "cni0"), show(t, "10.244.1.0/24", "lan0"))
	}
}

// TestAliasOfOthers: an alias does not make a device ours of a kind that we never make.
func TestAliasOfOthers(t *testing.T) {
	h := fresh(t)
	k := h.Kernel.(*Kernel)
	run(t, h, "ip link add veth0 type veth peer name veth1", "ip link set veth0 alias twill",
		"ip link add mine type vxlan id 8 dev lo dstport 4790", "ip link set mine alias twill")
	settle(t, k, netstate.State{})
	for name, stays := range map[string]bool{"veth0": true, "veth1": true, "mine": false} {
		if h.Index(name) != 0 != stays {
			t.Errorf("%s stays: %t, want %t", name, !stays, stays)
		}
	}
}

// show returns the routes to a prefix through a device, as iproute2 prints them.
func show(t *testing.T, prefix, dev string) string {
	t.Helper()
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	out, err := exec.Command("ip", family, "route", "show", prefix, "dev", dev).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.ReplaceAll(string(out), " linkdown", ""))
}
