package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/netstatetest"
)

// inside is set in the copy of the test binary that has a network namespace of its own.
const inside = "TWILL_KERNEL_TEST_INSIDE"

// TestMain runs the tests in a copy of this program in a fresh network namespace (and, without root, a fresh user
// namespace), so that nothing here can touch the machine.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	os.Exit(exitCode(cmd.Run()))
}

// exitCode is the copy's. Where no namespace can be made, the tests do not run: a failure in CI, and said aloud
// elsewhere.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	case os.Getenv("CI") != "":
		fmt.Fprintln(os.Stderr, "these tests need root or unprivileged user namespaces:", err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "SKIPPED, needs root or unprivileged user namespaces:", err)
	return 0
}

func TestConformance(t *testing.T) { netstatetest.Run(t, fresh) }

// fresh is a network namespace for one test: the goroutine stays on a thread that moves into it and ends with it.
func fresh(t *testing.T) netstatetest.Harness {
	return freshWith(t, func() []Provider { return nil })
}

// freshWith is fresh with providers that are opened in the namespace.
func freshWith(t *testing.T, providers func() []Provider) netstatetest.Harness {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	if err := command("ip link set lo up"); err != nil {
		t.Fatal(err)
	}
	k := newKernel(t, providers()...)
	return netstatetest.Harness{Kernel: k, Machine: k, Command: command, Index: index}
}

func newKernel(t *testing.T, providers ...Provider) *Kernel {
	t.Helper()
	k, err := New(netstatetest.Left(), providers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// command runs iproute2 commands in the calling thread's namespace: one in a process of its own, several of ip in one.
func command(lines ...string) error {
	args := strings.Fields(lines[0])
	if len(lines) > 1 {
		args = []string{"ip", "-batch", "-"}
	}
	for i, w := range args {
		if w == "''" {
			args[i] = ""
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if len(lines) > 1 {
		cmd.Stdin = strings.NewReader(strings.ReplaceAll("\n"+strings.Join(lines, "\n"), "\nip ", "\n"))
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(lines, "; "), err, stderr.Bytes())
	}
	return nil
}

func index(device string) int {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return 0
	}
	return i.Index
}
