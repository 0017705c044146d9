package faults

import (
	"cmp"
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
	t.Parallel()
	var table matrix
	for _, test := range []struct {
		spec  lab.Spec
		sides []side
	}{
		{lab.Spec{Name: "famvxlan", Backend: "vxlan", Nodes: 2}, []side{{1, true, "vxlan IPv6"}, {1, false, "vxlan IPv4"}}},
		{lab.Spec{Name: "famhostgw", Backend: "host-gw", Nodes: 2}, []side{{1, true, "host-gw IPv6"}}},
		{lab.Spec{Name: "famdirect", Backend: "vxlan", DirectRouting: true, Underlay: lab.L3, Nodes: 3}, []side{
			{2, false, "direct, IPv4"}, {2, true, "direct, IPv6"},
			{1, false, "routed, IPv4"}, {1, true, "routed, IPv6"}}},
	} {
		test.spec.Family, test.spec.Store, test.spec.Pods = lab.Dual, lab.Kube, 1
		t.Run(test.spec.Name, func(t *testing.T) {
			l := labtest.Up(t, test.spec)
			for _, s := range test.sides {
				table.heal(t, NewVictimOf(l, l.Nodes()[s.peer], s.six), s.says)
			}
		})
	}
	write(t, table.text())
	table.times.check(t)
}

// matrix is what was measured, "milliseconds (pings lost)" by fault and by victim.
type matrix struct {
	victims []string
	cells   map[[2]string]string
	times   pace
}

// heal injects all core faults that suit the victim.
func (m *matrix) heal(t *testing.T, v *Victim, says string) {
	if m.cells == nil {
		m.cells, m.times = map[[2]string]string{}, pace{}
	}
	m.victims = append(m.victims, says)
	for _, f := range Core() {
		if f.Suits(v) {
			t.Run(says+"/"+f.Name, func(t *testing.T) {
				took, loss := heal(t, f, v)
				m.times[says+"/"+f.Name] = took
				m.cells[[2]string{f.Says, says}] = fmt.Sprintf("%d (%d)", took.Milliseconds(), loss.Lost)
			})
		}
	}
}

// text is a row for each fault, and a dash where there is no such thing.
func (m *matrix) text() string {
	rows := []string{"| fault | " + strings.Join(m.victims, " | ") + " |", strings.Repeat("|---", len(m.victims)+1) + "|"}
	done := map[string]bool{}
	for _, f := range Core() {
		row := "| " + f.Says + " |"
		for _, v := range m.victims {
			row += " " + cmp.Or(m.cells[[2]string{f.Says, v}], "–") + " |"
		}
		if !done[f.Says] {
			rows = append(rows, row)
		}
		done[f.Says] = true
	}
	return strings.Join(rows, "\n") + "\n"
}
