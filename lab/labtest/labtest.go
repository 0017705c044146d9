// Package labtest is what tests that drive labs share: binaries built from this checkout, the lab's servers in
// the test binary itself, and labs that end with their test.
package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
)

// programs are what Main found or built.
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
	unlock, err := onlyRun()
	if err != nil {
		return report(err)
	}
	defer unlock()
	remove, err := findPrograms()
	defer remove()
	if err != nil {
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

// onlyRun waits for another run of the same package's tests: each removes what it takes for a crashed run's labs.
func onlyRun() (unlock func(), err error) {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the labs' directory: %w", err)
	}
	// A test program may have any name, so the lock goes by the package that it was built from.
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, errors.New("lock the tests' labs: the test program does not say which package's it is")
	}
	path := Dir + "-" + strings.ReplaceAll(info.Path, "/", "_") + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the tests' labs: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// Spec completes a spec with the tests' programs and directory. With TWILL_FAST_PATH=1 in the environment, pods' packets
// take the fast path in all labs whose backend has one.
func Spec(spec lab.Spec) lab.Spec {
	spec.Programs, spec.Dir = programs, Dir
	spec.FastPath = spec.FastPath || os.Getenv("TWILL_FAST_PATH") == "1" && lab.HasFastPath(spec.Backend)
	return spec
}

// Start brings a lab up for the time of the test. What a crashed run left of it is removed first.
func Start(t testing.TB, spec lab.Spec) *lab.Lab {
	t.Helper()
	return start(t, Spec(spec))
}

// StartDefault is Start in the directory where twillctl looks for labs.
func StartDefault(t testing.TB, spec lab.Spec) *lab.Lab {
	t.Helper()
	spec = Spec(spec)
	spec.Dir = lab.DefaultDir
	return start(t, spec)
}

func start(t testing.TB, spec lab.Spec) *lab.Lab {
	t.Helper()
	if spec.Store == lab.Kube {
		testall.Needs(t, "a built kube-apiserver")
	}
	if _, err := lab.Down(spec.Dir, spec.Name); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	l, err := lab.Up(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %v", time.Since(started).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			logAgents(t, l)
		}
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Up is Start, and waits until all pods reach each other.
func Up(t testing.TB, spec lab.Spec) *lab.Lab {
	t.Helper()
	l := Start(t, spec)
	pings, err := l.Converge(t.Context(), testwait.Limit)
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

// logAgents shows the end of every agent's log.
func logAgents(t testing.TB, l *lab.Lab) {
	for _, n := range l.Nodes() {
		data, err := os.ReadFile(n.Log())
		if err != nil {
			t.Log(err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		t.Logf("%s:\n%s", n.Log(), strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

// Overrun returns how many packets this machine's processors have dropped since boot because they had no time for them, the
// second column of /proc/net/softnet_stat. A test that wants no packet lost subtracts them: no route was missing.
func Overrun(t testing.TB) (dropped int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		n, err := strconv.ParseInt(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		dropped += int(n)
	}
	return dropped
}
