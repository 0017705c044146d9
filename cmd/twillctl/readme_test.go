package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
)

// readmeLab is the lab of this test: a reader's is named twill, and may be in use.
const readmeLab = "readme"

// block is a shell block of the README's first five minutes, and the lines that the reader is told to expect.
type block struct {
	script string
	lines  []string
}

// firstMinutes are the blocks. Those that are not shell show what the one before prints.
func firstMinutes(t *testing.T) []block {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n## The first five minutes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all []block
	for i, part := range strings.Split(section, "\n```") {
		if i%2 == 0 {
			continue
		}
		if script, ok := strings.CutPrefix(part, "sh\n"); ok {
			script = strings.NewReplacer("twillctl lab ", "twillctl lab --name "+readmeLab+" ", "--lab twill ", "--lab "+readmeLab+" ").Replace(script)
			all = append(all, block{script: script})
		} else {
			all[len(all)-1].lines = strings.Split(strings.TrimSpace(part), "\n")
		}
	}
	if len(all) < 5 {
		t.Fatalf("the README has %d shell blocks about the first five minutes, there are more: this test does not see them", len(all))
	}
	return all
}

// TestFirstFiveMinutes does what the README says, block by block.
func TestFirstFiveMinutes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("labs need root")
	}
	down := func() {
		if _, err := lab.Down("", readmeLab); err != nil {
			t.Error(err)
		}
	}
	down() // what a crashed run left
	t.Cleanup(down)
	for _, b := range firstMinutes(t) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", b.script)
		cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "LAB=--name "+readmeLab)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", b.script, err, out)
		}
		t.Logf("$ %s\n%s", b.script, out)
		for _, line := range b.lines {
			if !strings.Contains(string(out), line+"\n") {
				t.Errorf("the README promises %q of\n%s\nwhich printed\n%s", line, b.script, out)
			}
		}
	}
}

// TestWithoutRoot: a user without rights gets one sentence, of a lab that is there too.
func TestWithoutRoot(t *testing.T) {
	program, _ := build(t)
	open(t, filepath.Dir(program))
	call := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		return string(out), err
	}
	flags := []string{"--name", "rootless", "--nodes", "1", "--pods", "1", "--store", "file"}
	t.Setenv("TWILL_BIN_DIR", filepath.Join("..", "..", "bin"))
	out, err := call(append([]string{program, "lab", "up"}, flags...)...)
	t.Cleanup(func() {
		if _, err := lab.Down("", "rootless"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !strings.Contains(out, "  "+program+" lab --name rootless ping") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{append([]string{"up"}, flags...), {"ping", "--name", "rootless"}, {"exec", "--name", "rootless", "node1", "true"},
		{"status", "--name", "rootless"}, {"down", "--name", "rootless"}} {
		out, err := call(append([]string{"setpriv", "--reuid=65534", "--clear-groups", program, "lab"}, args...)...)
		if err == nil || out != "twillctl: a lab needs root: network namespaces and raw sockets\n" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
