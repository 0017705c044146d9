package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLabListsAndShowsScripts(t *testing.T) {
	for want, args := range map[string][]string{
		"manual-vxlan":  {"lab", "list"},
		"nud permanent": {"lab", "show", "manual-vxlan"},
		"up [-nodes N]": {"lab", "verbs", "up"},
		"connect [-6]":  {"lab", "verbs"},
		"fdb-deleted":   {"lab", "faults"},
	} {
		if out, err := run(t, args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v, want %q in\n%s", args, err, want, out)
		}
	}
	for want, args := range map[string][]string{
		`there is no script "none": twillctl lab list shows them`: {"lab", "run", "none"},
		"open /no/such.txtar": {"lab", "run", "/no/such.txtar"},
	} {
		if _, err := run(t, args...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

// TestLabRunSaysWhatFailed needs no lab: the script fails before it has one.
func TestLabRunSaysWhatFailed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"twilld", "twill"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TWILL_BIN_DIR", dir)
	file := filepath.Join(dir, "ctlfails.txtar")
	if err := os.WriteFile(file, []byte("# It fails.\necho one\nplan all\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "lab", "run", file)
	if exitCode(err) != 1 || !strings.Contains(out, "FAIL  ctlfails.txtar") || !strings.Contains(out, ":3: plan all: there is no lab yet") {
		t.Errorf("exit code %d, %v\n%s", exitCode(err), err, out)
	}
}
