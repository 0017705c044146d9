package firewall

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const nsVar = "TWILL_FIREWALL_TEST_NS"

// inNamespace runs the test in a process of its own in a new network namespace. It reports whether this is that
// process; in the other one the test is over.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(nsVar) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		skip(t, "not root")
		return false
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), nsVar+"=1", "XTABLES_LOCKFILE="+t.TempDir()+"/lock")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("in a new network namespace:\n%s", out)
	}
	switch {
	case err != nil:
		t.Fatal(err)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")):
		t.Skip("skipped in its namespace")
	}
	return false
}

// skip skips a test for which this machine has not got what it needs; in CI that is a failure.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// sh runs a shell command and returns what it printed.
func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// need skips the test if a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skip(t, err.Error())
		}
	}
}

// shim writes a program that runs another.
func shim(t *testing.T, at, program string) {
	t.Helper()
	if err := os.WriteFile(at, []byte("#!/bin/sh\nexec "+program+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func pathVar() string { return os.Getenv("PATH") }

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }
