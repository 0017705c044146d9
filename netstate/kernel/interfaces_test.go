package kernel

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestPassing: an address that the kernel has as secondary or deprecated may not be the interface's for good.
func TestPassing(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0",
		"ip addr add 192.0.2.200/24 dev u0", "ip addr add 192.0.2.201/32 dev u0", "ip addr add 2001:db8::1/64 dev u0 nodad",
		"ip addr add 2001:db8::dead/64 dev u0 nodad preferred_lft 0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	all, err := h.Machine.Interfaces(t.Context())
	for _, i := range all {
		if i.Name != "u0" {
			continue
		}
		if got := fmt.Sprint(i.Passing); got != "[192.0.2.200 2001:db8::dead]" {
			t.Errorf("passing are %s of %v", got, i.Addrs)
		}
		for addr, want := range map[string]bool{"192.0.2.1": true, "192.0.2.200": false, "192.0.2.201": false, "2001:db8::1": true,
			"2001:db8::dead": false, "192.0.2.9": false} {
			if i.Keeps(netip.MustParseAddr(addr)) != want {
				t.Errorf("u0 keeps %s: %t", addr, !want)
			}
		}
		return
	}
	t.Errorf("no u0 in %+v, %v", all, err)
}

// TestWays: an interface leads where routes of others say, each with its MTU, the preferred one of several.
func TestWays(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0",
		"ip route add default via 192.0.2.9 dev u0 mtu 1400", "ip route add 203.0.113.0/24 via 192.0.2.9 dev u0 metric 9 mtu 1200",
		"ip route add 203.0.113.0/24 via 192.0.2.9 dev u0 metric 5", "ip route add 10.244.2.0/24 via 192.0.2.9 dev u0 proto 116 mtu 900"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	all, err := h.Machine.Interfaces(t.Context())
	for _, i := range all {
		if got := fmt.Sprint(i.Ways); i.Name == "u0" && got != "[{0.0.0.0/0 1400} {192.0.2.0/24 0} {203.0.113.0/24 0}]" {
			t.Errorf("u0 leads to %s", got)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
