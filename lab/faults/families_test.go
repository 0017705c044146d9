package faults

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// side is a target of a lab: its node1 towards a peer, in one address family.
type side struct {
	peer   int // of the lab's nodes, from 0
	family netstate.Family
	says   string
}

// TestHealFamilies injects the core faults into dual-stack labs, into each family and, with DirectRouting,
// towards a peer on the same segment and one behind a router. With TWILL_TABLE=FILE it writes what it measured there.
func TestHealFamilies(t *testing.T) {
	t.Parallel()
	var table matrix
	for _, test := range []struct {
		spec  lab.Spec
		sides []side
	}{
		{lab.Spec{Name: "famvxlan", Backend: "vxlan", Nodes: 2}, []side{{1, netstate.IPv6, "vxlan IPv6"}, {1, netstate.IPv4, "vxlan IPv4"}}},
		{lab.Spec{Name: "famhostgw", Backend: "host-gw", Nodes: 2}, []side{{1, netstate.IPv6, "host-gw IPv6"}}},
		{lab.Spec{Name: "famdirect", Backend: "vxlan", DirectRouting: true, Underlay: lab.L3, Nodes: 3}, []side{
			{2, netstate.IPv4, "direct, IPv4"}, {2, netstate.IPv6, "direct, IPv6"}}},
		// A lab of its own: who makes the same fault again is taken for somebody who keeps making it.
		{lab.Spec{Name: "famrouted", Backend: "vxlan", DirectRouting: true, Underlay: lab.L3, Nodes: 3}, []side{
			{1, netstate.IPv4, "routed, IPv4"}, {1, netstate.IPv6, "routed, IPv6"}}},
	} {
		test.spec.Family, test.spec.Store, test.spec.Pods = lab.Dual, lab.Kube, 1
		t.Run(test.spec.Name, func(t *testing.T) {
			l := labtest.Up(t, test.spec)
			for _, s := range test.sides {
				table.heal(t, NewTargetOf(l, l.Nodes()[s.peer], s.family), s.says)
			}
		})
	}
	write(t, table.text())
	table.times.log(t)
}

// matrix is what was measured, "milliseconds (pings lost)" by fault and by target.
type matrix struct {
	targets []string
	cells   map[[2]string]string
	times   pace
}

// heal injects all core faults that suit the target.
func (m *matrix) heal(t *testing.T, v *Target, says string) {
	if m.cells == nil {
		m.cells, m.times = map[[2]string]string{}, pace{}
	}
	m.targets = append(m.targets, says)
	for _, f := range Core() {
		if f.AppliesTo(v) {
			t.Run(says+"/"+f.Name, func(t *testing.T) {
				took, loss := heal(t, f, v)
				m.times[says+"/"+f.Name] = took
				m.cells[[2]string{f.Description, says}] = fmt.Sprintf("%d (%d)", took.Milliseconds(), loss.Lost)
			})
		}
	}
}

// text is a row for each fault, and a dash where there is no such thing.
func (m *matrix) text() string {
	rows := []string{"| fault | " + strings.Join(m.targets, " | ") + " |", strings.Repeat("|---", len(m.targets)+1) + "|"}
	done := map[string]bool{}
	for _, f := range Core() {
		row := "| " + f.Description + " |"
		for _, v := range m.targets {
			row += " " + cmp.Or(m.cells[[2]string{f.Description, v}], "–") + " |"
		}
		if !done[f.Description] {
			rows = append(rows, row)
		}
		done[f.Description] = true
	}
	return strings.Join(rows, "\n") + "\n"
}
