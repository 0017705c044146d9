package eval

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/target"
)

// TestNodeOfLab: who names a node of a lab is told of that node, and not of the machine that the lab is on, which has neither the
// lab's underlay nor what is outside of it.
func TestNodeOfLab(t *testing.T) {
	t.Parallel()
	spec := labtest.Spec(lab.Spec{Name: "doctornode", Store: lab.File, Nodes: 2, Pods: 1})
	spec.Dir = lab.DefaultDir               // where a target looks
	_, err := lab.Down(spec.Dir, spec.Name) // what a crashed run left
	check(t, err)
	l, err := lab.Up(t.Context(), spec, nil)
	check(t, err)
	t.Cleanup(func() { check(t, l.Down()) })
	_, err = l.Converge(t.Context(), testwait.Limit)
	check(t, err)
	var f target.Flags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(flags, "", false)
	check(t, flags.Parse([]string{"--lab", l.Name()}))
	node, err := f.Target("node1")
	check(t, err)
	tested, err := node.Test(t.Context(), target.Goals{Outside: []string{"203.0.113.2"}, Services: []string{"none=192.168.33.102:1"}})
	check(t, err)
	for _, to := range []string{"node node2", "outside 203.0.113.2", "Service none"} {
		found := false
		for _, c := range tested.Cells {
			found = found || c.From == "node1" && c.To == to && c.Lost == 0 && c.Sent > 0
		}
		if !found {
			t.Errorf("node1 does not reach %s: %+v", to, tested.Cells)
		}
	}
	_, err = l.Nodes()[0].Exec(t.Context(), "tc", "qdisc", "add", "dev", "flannel.1", "root", "pfifo", "limit", "0")
	check(t, err)
	d, err := node.(target.Node).Diagnose(t.Context(), doctor.AllProbes)
	check(t, err)
	if len(d.Findings) == 0 || d.Findings[0].Place != "node1" || d.Findings[0].Command != "tc qdisc del dev flannel.1 root" {
		t.Errorf("a discipline that drops is not named: %+v", d.Findings)
	}
}
