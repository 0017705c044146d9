package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

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
		if err := build(dir); err != nil {
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

// build makes the binaries as the Makefile does, so that the compiled packages come from the cache.
func build(dir string) error {
	const module = "github.com/twill-net/twill"
	cmd := exec.Command(
		"go",
		"build",
		"-trimpath",
		"-tags",
		"grpcnotrace",
		"-ldflags",
		"-s -w",
		"-o",
		dir,
		module+"/cmd/twilld",
		module+"/cmd/twill",
	)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build twilld and twill: %w\n%s", err, out)
	}
	return nil
}
