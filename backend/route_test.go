package backend_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// TestRouteMTU: the narrowest prefix that holds a peer's address decides, for that peer alone.
func TestRouteMTU(t *testing.T) {
	u := backend.Underlay{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 9000, Narrow: map[netip.Prefix]int{
		netip.MustParsePrefix("0.0.0.0/0"): 1500, netip.MustParsePrefix("203.0.113.0/24"): 9000, netip.MustParsePrefix("203.0.113.9/32"): 400,
		netip.MustParsePrefix("2001:db8::/32"): 1300, netip.MustParsePrefix("2001:db8:1::/48"): 9100,
	}}
	inside := func(u backend.Underlay) int { return u.MTU - 50 }
	for peer, want := range map[string]int{"192.0.2.9": 1450, "203.0.113.7": 0, "203.0.113.9": 576, "2001:db8::9": 1280, "2001:db8:1::9": 0, "2001:db9::9": 0} {
		a := netip.MustParseAddr(peer)
		pods := "10.244.9.0/24"
		if a.Is6() {
			pods = "fd00:9::/64"
		}
		p := backend.Peer{Node: "n9", Stack: subnet.Stack{Subnet: netip.MustParsePrefix(pods), Underlay: a}}
		if got := u.RouteMTU(p, 8950, inside); got != want {
			t.Errorf("%s: %d, want %d", peer, got, want)
		}
		if got := u.RouteMTU(p, 500, inside); got != 0 {
			t.Errorf("%s: %d, though the device has less", peer, got)
		}
	}
	p := backend.Peer{Node: "n9", Stack: subnet.Stack{Subnet: netip.MustParsePrefix("10.244.9.0/24"), Underlay: netip.MustParseAddr("192.0.2.9")}}
	if got := backend.DirectRoute(u, p, false).String(); got != "route 10.244.9.0/24 via 192.0.2.9 dev eth0 mtu 1500" {
		t.Errorf("directly: %s", got)
	}
}
