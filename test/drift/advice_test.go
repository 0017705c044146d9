//go:build soak

package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/test/advice"
)

// findings asks the doctor on the node.
func (r *run) findings(ctx context.Context) ([]doctor.Finding, error) {
	out, _ := r.node.Exec(ctx, r.program, "doctor", "-o", "json", "--cni-cache-dir", r.node.CNICache()) // exits 1 with findings
	var report doctor.Diagnosis
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	return report.Findings, nil
}

// follow does what the doctor says about a move that it has named, and returns what that did not do.
func (t *trial) follow() (ran []advice.Offer, misled string) {
	course, err := advice.Patient{
		Ask: func(ctx context.Context) (advice.Offer, error) {
			all, err := t.findings(ctx)
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
