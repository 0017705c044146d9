// Package testns gives tests network namespaces of their own.
package testns

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter moves the test into a new network namespace, and runs command lines there, each a program and its arguments.
// The test's goroutine stays on its thread, and both end with the test, and the namespace with them; other goroutines
// are not in it. Without root the test is skipped.
func Enter(t testing.TB, lines ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace of its own needs root")
	}
	runtime.LockOSThread() // and never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}
