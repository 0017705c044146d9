package firewall

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// TestLocked: a program that never lets go of iptables' lock costs an attempt, and does not stop the agent.
func TestLocked(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	file, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f := New()
	defer f.Close()
	f.tools.limit = 300 * time.Millisecond
	want := wanted(netstate.IPTables)
	failed := make(chan error, 1)
	go func() { failed <- f.Apply(t.Context(), netstate.Diff(want, nil)) }()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "ended after 300ms") {
			t.Errorf("apply while another holds the lock: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("apply still waits for the lock")
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	settle(t, f, want)
}
