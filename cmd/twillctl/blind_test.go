package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
)

// TestBlind: who may not look says so, and takes nothing for missing or damaged.
func TestBlind(t *testing.T) {
	program, _ := build(t)
	open(t, filepath.Dir(program))
	for _, args := range looks(t) {
		out, err := exec.Command("setpriv", append([]string{"--reuid=65534", "--clear-groups", program}, args...)...).CombinedOutput()
		if code := exitCodeOf(err); code != 2 || !strings.HasPrefix(string(out), "twillctl: run as root: ") || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v without root: exit code %d\n%s", args, code, out)
		}
	}

	dir := open(t, t.TempDir())
	where := []string{"--checkpoint-file", filepath.Join(dir, "checkpoint.json"), "--subnet-file", filepath.Join(dir, "subnet.env"), "--cni-conf-dir", dir}
	for _, name := range []string{"checkpoint.json", "subnet.env", "10-twill.conflist"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(ownCheckpoint), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("setpriv", append([]string{"--bounding-set=-all,+net_admin,+net_raw", program, "doctor", "-o", "json"}, where...)...)
	out, _ := cmd.Output() // exits 1 with findings
	var got doctor.Diagnosis
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range got.Findings {
		if slices.Contains([]string{"no-lease", "lease-damaged", "env-missing", "env-damaged", "env-stale", "conflist-missing", "conflist-invalid"}, f.ID) {
			t.Errorf("what may not be read is no finding: %+v", f)
		}
	}
	for _, name := range []string{"checkpoint.json", "subnet.env", "10-twill.conflist"} {
		if !strings.Contains(strings.Join(got.Unread, "\n"), name+": permission denied") {
			t.Errorf("%s: want it among what was not looked at, got %q", name, got.Unread)
		}
	}
}

func exitCodeOf(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return 0
}
