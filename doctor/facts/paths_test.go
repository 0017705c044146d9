package facts

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
)

// TestTakes: a remote pod's address that somebody gave a device is named with the command that deletes it. One with a network
// may be the host's own, in a network of pods that contains the LAN: it is named, and no command is offered.
func TestTakes(t *testing.T) {
	g := gathering{Facts: &doctor.Facts{Interfaces: []netstate.Interface{
		{Name: "lo", Addrs: []netip.Prefix{netip.MustParsePrefix("10.244.2.2/32")}},
		{Name: "eth1", Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.33.2/24")}},
	}}}
	for to, want := range map[string][2]string{
		"10.244.2.2":   {"address 10.244.2.2/32 dev lo", "ip addr del 10.244.2.2/32 dev lo"},
		"192.168.33.2": {"address 192.168.33.2/24 dev eth1", ""},
	} {
		if by, fix := g.takes(netip.MustParseAddr(to)); by != want[0] || fix != want[1] {
			t.Errorf("%s: %q, %q; want %q", to, by, fix, want)
		}
	}
}
