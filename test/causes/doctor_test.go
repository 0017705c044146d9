//go:build soak

package causes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// finding is the first one of the doctor. The zero value: there is none.
type finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Place    string `json:"place"`
	Object   string `json:"object"`
	Actual   string `json:"actual"`
	Fix      string `json:"fix"`
	Command  string `json:"command"`
	// More has the probes that were lost, for people.
	More []string `json:"more"`
}

func (f finding) broken() bool { return f.Severity == "broken" }

// text is where the object must be named.
func (f finding) text() string { return f.Object + " " + f.Actual + " " + f.Fix }

func (f finding) String() string {
	if f.ID == "" {
		return "nothing"
	}
	return fmt.Sprintf("%s (%s) at %s: %s | %s | %s", f.ID, f.Severity, f.Place, f.Object, f.Actual, f.Fix)
}

// doctorLimit is how long the doctor may take before it has failed.
const doctorLimit = time.Minute

// ask has the doctor look at the whole lab with a probe.
func ask(ctx context.Context, program, lab string) (finding, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "doctor", "--lab", lab, "--probe", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return finding{}, took, fmt.Errorf("twillctl doctor: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var answer struct {
		First *finding `json:"first"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		return finding{}, took, fmt.Errorf("read the answer of twillctl doctor: %w", err)
	}
	if answer.First == nil {
		return finding{}, took, nil
	}
	return *answer.First, took, nil
}
