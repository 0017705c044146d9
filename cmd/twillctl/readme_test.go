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

// block is a shell block of the README's first minute, and the lines that the reader is told to expect.
type block struct {
	script string
	lines  []string
}

// firstMinute are the blocks. Those that are not shell show what the one before prints.
func firstMinute(t *testing.T) []block {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n## The first minute: a lab\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all []block
	for i, part := range strings.Split(section, "\n```") {
		if i%2 == 0 {
			continue
		}
		if script, ok := strings.CutPrefix(part, "sh\n"); ok {
			script = strings.NewReplacer("./twillctl lab ", "bin/twillctl lab --name "+readmeLab+" ", "twillctl lab ", "twillctl lab --name "+readmeLab+" ", "--lab twill ", "--lab "+readmeLab+" ").Replace(script)
			all = append(all, block{script: script})
		} else {
			all[len(all)-1].lines = strings.Split(strings.TrimSpace(part), "\n")
		}
	}
	if len(all) < 7 {
		t.Fatalf("the README has %d shell blocks about the first minute, there are more: this test does not see them", len(all))
	}
	return all
}

// hide takes programs away that a machine may not have, in a mount namespace of its own.
const hide = `PATH=$PATH:/usr/sbin:/sbin
for p in ip bridge tc ss nft iptables ip6tables iptables-legacy ip6tables-legacy iptables-nft ip6tables-nft tcpdump tshark; do
	if path=$(command -v $p); then mount --bind /dev/null "$path"; fi
	hash -r
	if command -v $p; then echo "$p is still there"; exit 9; fi
done
`

// TestFirstMinute does what the README says, block by block, where neither ip nor iptables, nft or tcpdump is installed.
func TestFirstMinute(t *testing.T) {
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
	blocks, script := firstMinute(t), hide
	for _, b := range blocks {
		script += "echo; echo '$ next block'\n" + b.script + "\n"
	}
	// All in one mount namespace, in which the lab's network namespaces have their names.
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec", script)
	cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "LAB=--name "+readmeLab)
	data, err := cmd.CombinedOutput()
	said := strings.Split(string(data), "\n$ next block\n")[1:]
	if err != nil || len(said) != len(blocks) {
		t.Fatalf("%d of %d blocks were run: %v\n%s", len(said), len(blocks), err, data)
	}
	for i, b := range blocks {
		t.Logf("$ %s\n%s", b.script, said[i])
		for _, line := range b.lines {
			if !strings.Contains(said[i], line) {
				t.Errorf("the README promises %q of\n%s\nwhich printed\n%s", line, b.script, said[i])
			}
		}
	}
}

// TestWithoutRoot: a user without rights gets one sentence of a lab that is root's.
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
	for _, args := range [][]string{{"ping", "--name", "rootless"}, {"exec", "--name", "rootless", "node1", "true"},
		{"status", "--name", "rootless"}, {"down", "--name", "rootless"}} {
		out, err := call(append([]string{"setpriv", "--reuid=65534", "--clear-groups", program, "lab"}, args...)...)
		if err == nil || out != "twillctl: lab rootless is root's: run this as root\n" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
