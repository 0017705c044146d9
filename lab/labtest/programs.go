package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
)

// findPrograms takes the binaries in $TWILL_BIN_DIR, or builds this checkout's; remove deletes what was built.
func findPrograms() (remove func(), err error) {
	remove = func() {}
	dir := os.Getenv("TWILL_BIN_DIR")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "twill-labtest-"); err != nil {
			return remove, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
		if err := build(dir, "twilld", "twill"); err != nil {
			return remove, err
		}
	}
	self, err := os.Executable()
	programs = lab.Programs{
		Agent:  filepath.Join(dir, "twilld"),
		Plugin: filepath.Join(dir, "twill"),
		Server: []string{self, "serve"},
	}
	return remove, err
}

// BinDir returns the directory of twilld, twill and twillctl: $TWILL_BIN_DIR, or one of the test's with this checkout's.
func BinDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("TWILL_BIN_DIR")
	if dir == "" {
		dir = t.TempDir()
		if err := build(dir, "twilld", "twill", "twillctl"); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// EarlierAgent builds twilld from the history: of the commit or tag that TWILL_PREVIOUS names.
func EarlierAgent(t testing.TB) string {
	t.Helper()
	commit := os.Getenv("TWILL_PREVIOUS")
	if commit == "" {
		t.Fatal("TWILL_PREVIOUS is not set: want the commit or the tag whose agents are replaced")
	}
	source, agent := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "twilld")
	run := func(dir string, command ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	run("", "git", "worktree", "add", "--detach", source, commit)
	t.Cleanup(func() {
		if out, err := exec.Command("git", "worktree", "remove", "--force", source).CombinedOutput(); err != nil {
			t.Errorf("remove the worktree of %s: %v\n%s", commit, err, out)
		}
	})
	run(source, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", agent, "./cmd/twilld")
	return agent
}

// build makes programs as the Makefile does, so that the compiled packages come from the cache. The agent is that with the
// clouds.
func build(dir string, names ...string) error {
	args := []string{"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", dir + "/"}
	for _, name := range names {
		folder := "cmd/"
		if name == "twilld" {
			folder = "clouds/cmd/"
		}
		args = append(args, "github.com/twill-net/twill/"+folder+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, out)
	}
	return nil
}
