//go:build soak

package drift

import (
	"context"
	"strings"

	"github.com/twill-net/twill/test/advice"
)

// follow does what the doctor says about a move that it has named, and returns what that did not do.
func (t *trial) follow() (ran []advice.Offer, misled string) {
	course, err := advice.Patient{
		Ask: func(ctx context.Context) (advice.Offer, error) {
			all, err := advice.Findings(ctx, t.node, t.program)
			return advice.First(all, t.node.Name), err
		},
		Run: func(_ context.Context, _, command string) (string, error) { return t.shell(command) },
		Lost: func(context.Context) []string {
			if lost := t.dead(); lost != "" {
				return strings.Split(lost, ", ")
			}
			return nil
		},
		Needs: advice.Needs(t.node),
		Rest:  patient(announced),
	}.Follow(t.Context())
	if err != nil {
		misled = err.Error()
	}
	return course.Ran, misled
}
