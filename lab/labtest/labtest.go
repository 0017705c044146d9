// Package labtest is what tests that drive labs share: binaries built from this checkout, the lab's servers in
// the test binary itself, and labs that end with their test.
package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twill-net/twill/lab"
)

// programs are built from this checkout by Main.
var programs lab.Programs

// Dir is where the tests' labs are: the same in every run, so that a run finds what a crashed one left.
const Dir = "/run/twill/test"

// Main is a package's TestMain: it runs the tests or, when a lab starts the test binary again with "serve", one
// of the lab's servers. It returns the exit code.
func Main(m *testing.M) int {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		return report(serve())
	}
	if os.Geteuid() != 0 {
		fmt.Println("labs need root: the tests of this package are not run")
		return map[bool]int{true: 1, false: 0}[os.Getenv("CI") != ""]
	}
	dir, err := os.MkdirTemp("", "twill-labtest-")
	if err != nil {
		return report(err)
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		return report(err)
	}
	return m.Run()
}

func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return lab.Serve(ctx, os.Args[2:])
}

// build makes the binaries as the Makefile does, so that the compiled packages come from the cache.
func build(dir string) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "./cmd/twilld", "./cmd/twill")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build twilld and twill: %w\n%s", err, out)
	}
	self, err := os.Executable()
	programs = lab.Programs{Agent: filepath.Join(dir, "twilld"), Plugin: filepath.Join(dir, "twill"), Server: []string{self, "serve"}}
	return err
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	gomod := strings.TrimSpace(string(out))
	if gomod == "" || gomod == os.DevNull {
		return "", errors.New("find the module: the tests do not run inside of it")
	}
	return filepath.Dir(gomod), nil
}

// Settle is within which agents follow what happened to others.
const Settle = 5 * time.Second

// Up brings a lab up for the time of the test, and waits until all pods reach each other.
func Up(t testing.TB, spec lab.Spec) *lab.Lab {
	t.Helper()
	spec.Programs, spec.Dir = programs, Dir
	if _, err := lab.Down(spec.Dir, spec.Name); err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	pings, err := l.Converge(t.Context(), Settle)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pings {
		if !p.OK() {
			t.Fatalf("%s does not reach %s: %s", p.From, p.To, p.Error)
		}
	}
	return l
}
