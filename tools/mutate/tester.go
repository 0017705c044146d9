package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "SURVIVED"
	broken   verdict = "broken" // it does not compile
)

// tester runs the tests of some folders against mutants.
type tester struct {
	tests   []string
	choose  string // as -run does
	timeout time.Duration
	dir     string // for what is in place of source files
}

// newTester fails where the tests fail without a mutant: then they prove nothing.
func newTester(tests []string, run string, timeout time.Duration) (*tester, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	t := &tester{tests: tests, choose: run, timeout: timeout, dir: dir}
	began := time.Now()
	v, out, err := t.run(nil)
	switch {
	case err != nil:
	case v != survived:
		err = fmt.Errorf("the tests of %v fail without a mutant:\n%s", tests, out)
	case bytes.Contains(out, []byte("[no tests to run]")):
		err = fmt.Errorf("%q chooses no test in one of %v:\n%s", run, tests, out)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	t.timeout = min(timeout, 20*time.Second+5*time.Since(began)) // a mutant that hangs is found out sooner
	return t, nil
}

func (t *tester) close() { _ = os.RemoveAll(t.dir) }

func (t *tester) test(m mutant) (verdict, error) {
	mutated := filepath.Join(t.dir, filepath.Base(m.file))
	text := bytes.Join([][]byte{m.source[:m.start], []byte(m.text), m.source[m.end:]}, nil)
	if err := os.WriteFile(mutated, text, 0o600); err != nil {
		return "", err
	}
	v, _, err := t.run(map[string]string{m.file: mutated})
	return v, err
}

// apart runs a command with a network, mounts, /run and processes of its own, all of which end with it.
const apart = `mount -t tmpfs tmpfs /run && mkdir -p /run/lock && ip link set lo up && exec "$@"`

func (t *tester) run(replace map[string]string) (verdict, []byte, error) {
	overlay := filepath.Join(t.dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(
		context.Background(),
		t.timeout+time.Minute,
	) // go test ends tests; this one is for the rest
	defer cancel()
	args := append(
		[]string{
			"--net",
			"--mount",
			"--pid",
			"--ipc",
			"--fork",
			"--kill-child",
			"--mount-proc",
			"sh",
			"-c",
			apart,
			"sh",
			"go",
			"test",
			"-count=1",
			"-failfast",
			"-vet=off",
			"-run=" + t.choose,
			"-timeout=" + t.timeout.String(),
		},
		t.tests...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay, "CI=true")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return survived, out, nil
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return broken, out, nil
	case ctx.Err() != nil || errors.As(err, &failed):
		return killed, out, nil
	}
	return "", out, fmt.Errorf("run the tests: %w", err)
}
