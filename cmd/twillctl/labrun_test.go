package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
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

// scriptFile is the file of a script that needs no lab, for which there are programs nevertheless.
func scriptFile(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"twilld", "twill"} {
		if err := os.WriteFile(filepath.Join(dir, program), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TWILL_BIN_DIR", dir)
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLabRunSaysWhatFailed needs no lab: the script fails before it has one.
func TestLabRunSaysWhatFailed(t *testing.T) {
	file := scriptFile(t, "ctlfails.txtar", "# It fails.\necho one\nplan all\n")
	out, err := run(t, "lab", "run", file)
	if exitCode(err) != 1 || !strings.Contains(out, "FAIL  ctlfails.txtar") || !strings.Contains(out, ":3: plan all: there is no lab yet") {
		t.Errorf("exit code %d, %v\n%s", exitCode(err), err, out)
	}
}

// TestLabRunOnTerminal: a reader sees the commands and their sense, and -q or a pipe the result alone.
func TestLabRunOnTerminal(t *testing.T) {
	file := scriptFile(t, "ctlreads.txtar", "# It says why.\necho one\n")
	for _, c := range []struct {
		args           []string
		terminal, whys bool
	}{
		{nil, true, true},
		{[]string{"-q"}, true, false},
		{nil, false, false},
		{[]string{"-v"}, false, true},
	} {
		args := append(append([]string{"lab", "run"}, c.args...), file)
		out, err := run(t, args...)
		if c.terminal {
			out, err = runOnTerminal(t, args...)
		}
		if shown := strings.Contains(out, "# It says why.") && strings.Contains(out, "> echo one"); err != nil || shown != c.whys || !strings.Contains(out, "ok    ctlreads.txtar") {
			t.Errorf("%v, on a terminal %v: %v\n%s", c.args, c.terminal, err, out)
		}
	}
	if _, err := run(t, "lab", "run", "-q", "-v", file); err == nil || !strings.Contains(err.Error(), "[quiet verbose]") {
		t.Errorf("-q and -v: %v", err)
	}
}

// runOnTerminal is run where standard output is a terminal. What is printed must fit into its buffer.
func runOnTerminal(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if err := unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := root()
	c.SetOut(far)
	c.SetErr(far)
	c.SetArgs(args)
	err = c.ExecuteContext(t.Context())
	far.Close()
	out, _ := io.ReadAll(near) // it ends with an error: nobody has the other side
	return string(out), err
}

// TestLabRunNamed: the lab has the name that was asked for, but a lab that is there is not touched.
func TestLabRunNamed(t *testing.T) {
	file := scriptFile(t, "ctlnamed.txtar", "echo $LAB\nstdout '^ctlmine$'\n")
	if out, err := run(t, "lab", "run", "--name", "ctlmine", file); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run(t, "lab", "run", file); err == nil || !strings.Contains(out, "sctlnamed") {
		t.Errorf("without a name the lab is the script's: %v\n%s", err, out)
	}
	dir := filepath.Join(lab.DefaultDir, "ctlmine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	out, err := run(t, "lab", "run", "--name", "ctlmine", file)
	if err == nil || !strings.Contains(out, "there is a lab ctlmine, and a script has one of its own: remove it with twillctl lab down --name ctlmine, or give another --name") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the lab that was there: %v", err)
	}
}
