package firewall

import (
	"os"
	"path/filepath"
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

// TestProbe: what a binary says of itself tells its variant, and whether it knows --random-fully and iptables-restore --wait.
func TestProbe(t *testing.T) {
	for said, want := range map[string]probed{
		"iptables v1.8.9 (nf_tables)": {tool{randomFully: true}, overNF}, "iptables v1.8.9 (legacy)": {tool{randomFully: true}, legacy},
		"iptables v1.6.2": {tool{randomFully: true}, legacy}, "iptables v1.6.1": {tool{}, legacy}, "iptables v1.4.21": {tool{}, legacy},
		"iptables v2.0.0 (nf_tables)": {tool{randomFully: true}, overNF}, "iptables v1.10.0": {tool{randomFully: true}, legacy}, "iptables v0.9.9": {tool{}, legacy},
	} {
		path := filepath.Join(t.TempDir(), "iptables")
		shim(t, path, "echo '"+said+"' #")
		got, err := probe(path, 10*time.Second)
		want.tool.path, want.tool.limit = path, 10*time.Second
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", said, got, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "iptables")
	shim(t, path, "echo nothing #")
	if _, err := probe(path, 10*time.Second); err == nil || !strings.Contains(err.Error(), "want the form v1.8.9") {
		t.Errorf("without a version: %v", err)
	}
}

// TestRefusal: what a binary complains of becomes the error; a chain that is not there is none.
func TestRefusal(t *testing.T) {
	for said, exists := range map[string]bool{
		"iptables: No chain/target/match by that name.":                             false,
		"iptables v1.8.9 (nf_tables): chain `X' in table `nat' does not exist":      false,
		"iptables v1.8.9 (nf_tables): table `nat' is incompatible, use 'nft' tool.": false,
		"iptables: Permission denied (you must be root).":                           true,
	} {
		path := filepath.Join(t.TempDir(), "iptables")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho \""+strings.ReplaceAll(said, "`", "\\`")+"\" >&2\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		tool := tool{path: path, limit: 10 * time.Second}
		lines, err := tool.list("nat", "X")
		if lines != nil || (err != nil) != exists || err != nil && !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %q, %v; want an error: %t", said, lines, err, exists)
		}
	}
}
