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

// report is what twillctl doctor prints of several nodes.
type report struct {
	First *finding `json:"first"`
	Nodes []struct {
		Findings []finding `json:"findings"`
	} `json:"nodes"`
}

func (r report) first() finding {
	if r.First == nil {
		return finding{}
	}
	return *r.First
}

// ask has the doctor look at the whole lab with a probe.
func ask(ctx context.Context, program, lab string) (finding, time.Duration, error) {
	a, took, err := askDoctor(ctx, nil, program, "--lab="+lab)
	return a.first(), took, err
}

// askDoctor has the doctor look at several nodes with a probe.
func askDoctor(ctx context.Context, env []string, program, what string) (a report, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, doctorLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "doctor", what, "--probe", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
	began := time.Now()
	err = cmd.Run()
	took = time.Since(began)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return a, took, fmt.Errorf("twillctl doctor: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		return a, took, fmt.Errorf("read the answer of twillctl doctor: %w", err)
	}
	return a, took, nil
}
