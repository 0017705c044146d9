// Package e2e drives whole clusters: the real twilld and twill in the lab's namespaces, for every backend,
// address family and store.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/twill-net/twill/lab"
)

// programs are what TestMain found or built.
var programs lab.Programs

// stateDir is the same in every run, so that a run finds what a crashed one left.
const stateDir = "/run/twill/e2e"

// TestMain runs the tests or, when the lab starts this binary again with "serve", one of the lab's servers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := lab.Serve(ctx, os.Args[2:])
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("the labs of these tests need root")
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0
	}
	unlock, err := onlyRun()
	if err == nil {
		defer unlock()
		err = findPrograms()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if built != "" {
		defer os.RemoveAll(built)
	}
	return m.Run()
}

// onlyRun waits for another run of these tests: each removes what it takes for a crashed run's labs.
func onlyRun() (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(stateDir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(stateDir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
}

// built is the directory of what was built for this run.
var built string

// findPrograms takes the binaries in $TWILL_BIN_DIR, or builds this checkout's.
func findPrograms() error {
	dir := os.Getenv("TWILL_BIN_DIR")
	if dir == "" {
		var err error
		if built, err = os.MkdirTemp("", "twill-e2e-"); err != nil {
			return err
		}
		if err := build(built); err != nil {
			return err
		}
		dir = built
	}
	self, err := os.Executable()
	programs = lab.Programs{Agent: filepath.Join(dir, "twilld"), Plugin: filepath.Join(dir, "twill"), Server: []string{self, "serve"}}
	return err
}

func build(dir string) error {
	// As the Makefile builds them, so that the compiled packages come from the cache.
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "../../cmd/twilld", "../../cmd/twill")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build twilld and twill: %w\n%s", err, out)
	}
	return nil
}
