package faults

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// side is a victim of a lab: its node1 towards a peer, in one address family.
type side struct {
	peer int // of the lab's nodes, from 0
	six  bool
	says string
}

// TestHealFamilies injects the core faults into dual-stack labs, into each family and, with DirectRouting, towards a peer on the
// same segment and one behind a router. With TWILL_TABLE=FILE it writes what it measured there.
func TestHealFamilies(t *testing.T) {
	var table strings.Builder
	table.WriteString("| fault | where | healed after | pings lost (every 2 ms) |\n|---|---|---|---|\n")
	for _, test := range []struct {
		spec  lab.Spec
		sides []side
	}{
		{lab.Spec{Name: "famvxlan", Backend: "vxlan", Nodes: 2}, []side{{1, true, "vxlan, IPv6 of dual stack"}, {1, false, "vxlan, IPv4 of dual stack"}}},
		{lab.Spec{Name: "famhostgw", Backend: "host-gw", Nodes: 2}, []side{{1, true, "host-gw, IPv6 of dual stack"}}},
		{lab.Spec{Name: "famdirect", Backend: "vxlan", DirectRouting: true, Underlay: lab.L3, Nodes: 3}, []side{
			{2, false, "DirectRouting, IPv4, same segment"}, {2, true, "DirectRouting, IPv6, same segment"},
			{1, false, "DirectRouting, IPv4, behind a router"}, {1, true, "DirectRouting, IPv6, behind a router"}}},
	} {
		test.spec.Family, test.spec.Store, test.spec.Pods = lab.Dual, lab.Kube, 1
		l := labtest.Up(t, test.spec)
		for _, s := range test.sides {
			v := NewVictimOf(l, l.Nodes()[s.peer], s.six)
			for _, f := range Core() {
				if f.Suits(v) {
					t.Run(s.says+"/"+f.Name, func(t *testing.T) {
						took, loss := heal(t, f, v)
						fmt.Fprintf(&table, "| %s | %s | %d ms | %d |\n", f.Says, s.says, took.Milliseconds(), loss.Lost)
					})
				}
			}
		}
	}
	write(t, table.String())
}
