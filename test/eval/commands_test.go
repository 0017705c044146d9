package eval

import (
	"context"
	"strings"
	"testing"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/test/advice"
)

// share is how much of the faults TestCommands takes: one in as many, but all with TWILL_ALL.
const share = 3

// TestCommands runs the command that the doctor's first finding offers for each fault, in a lab of its own: it does not
// fail, what was found is gone, and with the agent again the node is healthy, so that nobody brings the fault back and
// nothing else was lost.
func TestCommands(t *testing.T) {
	t.Parallel()
	spec := lab.Spec{Name: "doctorcommands", Backend: "vxlan", Family: lab.Dual, Store: lab.File, Nodes: 3, Pods: 1}
	var offered int
	var without []string
	for i, f := range faults.All() {
		if f.Finding == "" || !f.Applies(spec) || !possible(f) || !everywhere() && i%share != 0 {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			if execute(t, f, faults.NewTarget(labtest.Up(t, spec))) {
				offered++
			} else {
				without = append(without, f.Name)
			}
		})
	}
	t.Logf("%d commands were offered; without one: %s", offered, strings.Join(without, " "))
	if all := offered + len(without); all > 20 && offered < all/3 {
		t.Errorf("%d commands were offered for %d faults, there are more", offered, all)
	}
}

// execute injects a fault and runs the commands that are offered, one after the other, as long as there is one: the next
// finding may say what remains. It reports whether there was one.
func execute(t *testing.T, f faults.Fault, v *faults.Target) bool {
	t.Helper()
	testwait.Until(t, "the checkpoint has the peers", func() bool {
		saved, err := agent.ReadCheckpoint(v.Node.CheckpointFile())
		return err == nil && len(saved.Snapshot.Peers) == len(v.Lab.Nodes())-1
	})
	if !f.KeepAgent {
		check(t, v.Node.KillAgent())
	}
	check(t, f.Inject(t.Context(), v))
	course, err := advice.Patient{
		Ask: func(context.Context) (advice.Offer, error) {
			return advice.First(doctor.Check(lookAt(t, v.Lab, v.Node, probing(f))), v.Node.Name), nil
		},
		Run: func(ctx context.Context, _, command string) (string, error) {
			return v.Node.Exec(ctx, "sh", "-ec", command)
		},
		Needs: advice.Needs(v.Node),
	}.Follow(t.Context())
	check(t, err)
	if len(course.Ran) == 0 {
		return false
	}
	check(t, v.Node.RestartAgent(t.Context()))
	awaitHealth(t, v)
	awaitPing(t, v)
	t.Logf("ran %s", course)
	return true
}
