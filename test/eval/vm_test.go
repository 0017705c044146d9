//go:build vm

package eval

import (
	"slices"
	"testing"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
)

// possible reports whether a fault can be injected in the microvm, which has no iptables.
func possible(f faults.Fault) bool {
	return slices.Contains([]string{"route-deleted", "route-blackholed", "routes-flushed", "vtep-deleted", "vtep-down", "vtep-address", "vtep-mtu",
		"wg-peer-deleted", "wg-peer-altered", "wg-key-altered", "bridge-down", "bridge-address", "bridge-mtu", "ip-forward-off", "rp-filter-strict",
		"route-shadowed", "policy-rule", "underlay-blackhole", "underlay-neighbour", "underlay-down", "underlay-address-lost", "underlay-address-changed",
		"underlay-mtu", "pod-unplugged", "forward-other-table", "duplicate-underlay", "duplicate-subnet", "path-mtu", "peer-unplugged", "agent-down"}, f.Name)
}

// TestFaultsOfThisKernel is TestFaults for backends that need a kernel that has them.
func TestFaultsOfThisKernel(t *testing.T) {
	all := []column{{"ipip", "ipip", lab.IPv4}, {"wireguard-kernel", "wireguard", lab.IPv4}}
	e := evaluation{columns: all, results: map[string]*result{}}
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) { e.run(t, []string{"doctori", "doctorw"}[i], c) })
	}
	t.Logf("%d of %d faults are the first finding\n%s\n%s", e.right, e.all, e.table(), e.stopsTable())
}
