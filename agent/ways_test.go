package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// TestMeasured: an underlay knows which of the machine's routes carry less than it does, and one whose address is on
// loopback has the MTU of what packets leave through.
func TestMeasured(t *testing.T) {
	way := func(dst string, mtu int) netstate.Way { return netstate.Way{Dst: netip.MustParsePrefix(dst), MTU: mtu} }
	eth0 := netstate.Interface{Name: "eth0", MTU: 1500, Ways: []netstate.Way{way("0.0.0.0/0", 0), way("192.0.2.0/24", 0)}}
	big := netstate.Interface{Name: "eth1", MTU: 9000, Ways: []netstate.Way{way("198.51.100.0/24", 0), way("203.0.113.0/24", 8000)}}
	lo := netstate.Interface{Name: "lo", MTU: 65536, Ways: []netstate.Way{way("10.9.0.0/16", 0)}}
	ours := netstate.Interface{Name: "cni0", MTU: 1300, Owned: true, Ways: []netstate.Way{way("10.244.1.0/24", 0)}}
	six := netstate.Interface{Name: "eth2", MTU: 1280, Ways: []netstate.Way{way("2001:db8::/32", 0)}}
	for _, test := range []struct {
		dev        string
		mtu        int
		interfaces []netstate.Interface
		want       string
	}{
		{"eth0", 1500, []netstate.Interface{eth0, lo, ours, six}, "1500 map[]"},
		{"eth0", 1500, []netstate.Interface{eth0, big}, "1500 map[]"},
		{"eth1", 9000, []netstate.Interface{eth0, big}, "9000 map[0.0.0.0/0:1500 192.0.2.0/24:1500 198.51.100.0/24:9000 203.0.113.0/24:8000]"},
		{"eth1", 9000, []netstate.Interface{big, six}, "9000 map[203.0.113.0/24:8000]"},
		{"lo", 65536, []netstate.Interface{lo, eth0, big}, "1500 map[]"},
		{"lo", 65536, []netstate.Interface{lo, big}, "9000 map[203.0.113.0/24:8000]"},
		{"lo", 65536, []netstate.Interface{lo}, "65536 map[]"},
	} {
		u := measured([]backend.Underlay{{Dev: test.dev, Local: addrs("192.0.2.1")[0], MTU: test.mtu}}, test.interfaces)[0]
		if got := fmt.Sprint(u.MTU, " ", u.Narrow); got != test.want {
			t.Errorf("%s among %d interfaces: %s, want %s", test.dev, len(test.interfaces), got, test.want)
		}
	}
}
