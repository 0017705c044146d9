package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestNoBridge: where somebody else makes the pods' bridge, it may have the gateway's address, and nothing is a pod's port
// just because it is on no bridge.
func TestNoBridge(t *testing.T) {
	network := netip.MustParsePrefix("10.244.0.0/16")
	for _, c := range []struct{ bridge, addr, want string }{
		{"", "10.244.1.1/24", ""},
		{"", "10.244.1.7/24", "network-overlap"},
		{"", "10.244.2.1/24", "network-overlap"},
		{"cni0", "10.244.1.1/24", "network-overlap pod-mtu"},
	} {
		f := Facts{Bridge: c.bridge, PodMTU: 1450, Ports: []Port{{Name: "eth1", Pod: true, Master: c.bridge, MTU: 1500}}}
		f.Lease.Network = subnet.Config{Pools: []subnet.Pool{{Network: network, SubnetLen: 24}}}
		f.Lease.Snapshot.Local = subnet.Lease{Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.1.0/24")}}}
		f.Interfaces = []netstate.Interface{{Name: "docker0", Addrs: []netip.Prefix{netip.MustParsePrefix(c.addr)}}}
		e := exam{Facts: f}
		e.checkOverlaps()
		var got []string
		for _, finding := range e.found {
			got = append(got, finding.ID)
		}
		if _, tooLarge := f.oversized(); tooLarge {
			got = append(got, "pod-mtu")
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("bridge %q, docker0 with %s: found %q, want %q", c.bridge, c.addr, got, c.want)
		}
	}
}
