package filter

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/netstate"
)

const nsVar = "TWILL_FILTER_TEST_NS"

// inNamespace runs the test in a process of its own in a new network namespace. It reports whether this is that
// process; in the other one the test is over.
func inNamespace(t testing.TB) bool {
	t.Helper()
	if os.Getenv(nsVar) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		skip(t, "not root")
		return false
	}
	args := []string{"-test.v", "-test.run", "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"}
	if _, ok := t.(*testing.B); ok {
		args = []string{"-test.run", "^$", "-test.bench", "^" + t.Name() + "$"}
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), nsVar+"=1")
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
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// need skips the test if a program is missing.
func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skip(t, err.Error())
		}
	}
}

// sh runs a shell command and returns what it printed.
func sh(t testing.TB, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", ownIP()+command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// ownIP makes "ip" iproute2's: busybox's shell has one of its own.
func ownIP() string {
	path, err := exec.LookPath("ip")
	if err != nil {
		return ""
	}
	return "alias ip=" + path + "\n"
}

// open returns a Filter for the test.
func open(t testing.TB) *Filter {
	t.Helper()
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func observe(t testing.TB, f *Filter, want netstate.State) netstate.State {
	t.Helper()
	s, err := f.Observe(t.Context(), want)
	if err != nil {
		t.Fatalf("observe: %v", err)
	}
	return s
}

// settle applies want, after which nothing is left to do.
func settle(t testing.TB, f *Filter, want netstate.State) {
	t.Helper()
	plan := netstate.Diff(want, observe(t, f, want))
	if err := f.Apply(t.Context(), plan); err != nil {
		t.Fatalf("apply: %v; the plan is\n%s", err, plan)
	}
	if left := netstate.Diff(want, observe(t, f, want)); len(left) > 0 {
		t.Fatalf("after this plan:\n%s\nthere is left:\n%s\nof\n%s", plan, left, want)
	}
}

func prefixes(t testing.TB, text string) (all []netip.Prefix) {
	t.Helper()
	for _, s := range strings.Fields(text) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}
