// Package backendtest is what the tests of backends share that have packets move between nodes: a namespace
// of their own, and nodes in namespaces beside it.
package backendtest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
)

// Log returns a logger that calls f with each line.
func Log(f func(line string)) *slog.Logger { return slog.New(slog.NewTextHandler(lines(f), nil)) }

type lines func(string)

func (f lines) Write(line []byte) (int, error) {
	f(strings.TrimSpace(string(line)))
	return len(line), nil
}

// inside is set in the copy of the test binary that has a network namespace of its own.
const inside = "TWILL_BACKEND_TEST_INSIDE"

// Main is a package's TestMain: it runs the tests in a copy of the program in a fresh network namespace, and
// returns its exit code.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "these tests need root:", err)
	return 1
}

// Machine is node number N in a network namespace of its own, which lasts as long as the test.
type Machine struct {
	*testing.T
	N  int
	NS string // a path
}

// New makes a machine: a thread stays in its namespace until the test ends.
func New(t *testing.T, n int) *Machine {
	t.Helper()
	ready, end := make(chan string), make(chan bool)
	go func() {
		runtime.LockOSThread()
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			close(ready)
			return
		}
		ready <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-end
	}()
	m := &Machine{T: t, N: n, NS: <-ready}
	t.Cleanup(func() { close(end) })
	if m.NS == "" {
		t.Fatal("make a network namespace: it needs root")
	}
	return m
}

// Try runs a command line in the namespace and returns what it wrote.
func (m *Machine) Try(line string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"--net=" + m.NS}, strings.Fields(line)...)...).
		CombinedOutput()
	return string(out), err
}

// Command runs command lines that must succeed.
func (m *Machine) Command(lines ...string) {
	m.Helper()
	for _, line := range lines {
		if out, err := m.Try(line); err != nil {
			m.Fatalf("node %d: %s: %v: %s", m.N, line, err, out)
		}
	}
}

// Do runs f on a thread in the namespace, which ends with it.
func (m *Machine) Do(f func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open(m.NS)
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err == nil {
			err = f()
		}
		ended <- err
	}()
	return <-ended
}

// Pings reports whether an address answers before testwait.Limit.
func (m *Machine) Pings(to string) bool {
	for end := time.Now().Add(testwait.Limit); time.Now().Before(end); {
		if _, err := m.Try("ping -c 1 -W 1 " + to); err == nil {
			return true
		}
	}
	return false
}

// Connect puts two machines on one segment: u0 with 192.0.2.N/24 and 2001:db8::N/64.
func Connect(a, b *Machine) {
	a.Helper()
	Cable(a, b, "u0")
	for _, m := range []*Machine{a, b} {
		m.Command(
			fmt.Sprintf("ip addr add 192.0.2.%d/24 dev u0", m.N),
			fmt.Sprintf("ip addr add 2001:db8::%d/64 dev u0 nodad", m.N),
		)
	}
}

// Cable is a veth between two machines, of one name on both.
func Cable(a, b *Machine, dev string) {
	a.Helper()
	a.Command(
		"ip link add "+dev+" type veth peer name "+dev+"p",
		"ip link set "+dev+"p netns "+strings.Split(b.NS, "/")[4],
	)
	b.Command("ip link set " + dev + "p name " + dev)
	for _, m := range []*Machine{a, b} {
		m.Command("ip link set lo up", "ip link set "+dev+" up")
	}
}
