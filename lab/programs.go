package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/doctor/trust"
)

// Programs are the binaries that a lab runs.
type Programs struct {
	Agent  string   // twilld
	Plugin string   // twill; its directory is libcni's plugin path
	Server []string // the command that passes its further arguments to Serve: twillctl lab serve
}

// pluginDirs are where the plugin is if it is not beside twillctl and twilld: in the image, and in the Debian package.
var pluginDirs = []string{"/opt/twill/cni", "/opt/cni/bin"}

// FindPrograms looks for Twill's binaries in $TWILL_BIN_DIR, then next to the running executable, then in bin below the
// working directory or one above it. What lies there by chance is only run if it is root's or the caller's alone: a lab
// runs it as root.
func FindPrograms() (Programs, error) {
	var dirs []string
	named := os.Getenv("TWILL_BIN_DIR")
	if named != "" {
		dirs = append(dirs, named)
	}
	self, err := os.Executable()
	if err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	if root, ok := checkout(); ok {
		dirs = append(dirs, filepath.Join(root, "bin"))
	}
	for _, dir := range dirs {
		beside := []string{dir}
		if dir == filepath.Dir(self) {
			beside = append(beside, pluginDirs...)
		}
		p, ok := programsIn(dir, beside)
		if !ok {
			continue
		}
		p.Server = []string{filepath.Join(dir, "twillctl"), "lab", "serve"}
		if filepath.Base(self) == "twillctl" {
			p.Server[0] = self
		}
		if dir == named || dir == filepath.Dir(self) {
			return p, nil
		}
		return p, p.trusted()
	}
	return Programs{}, fmt.Errorf(
		"no twilld and twill in %s: run `make build`, or say where they are with TWILL_BIN_DIR",
		strings.Join(dirs, " or "),
	)
}

// programsIn are the agent of a directory and the plugin of the first that has one.
func programsIn(dir string, plugins []string) (Programs, bool) {
	p := Programs{Agent: filepath.Join(dir, "twilld")}
	for _, d := range plugins {
		if p.Plugin = filepath.Join(d, "twill"); isFile(p.Plugin) {
			return p, isFile(p.Agent)
		}
	}
	return p, false
}

// trusted returns an error if others could have put the programs there.
func (p Programs) trusted() error {
	for _, path := range []string{p.Agent, p.Plugin, p.Server[0]} {
		if err := trust.File(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("not run: %w; say with TWILL_BIN_DIR that it is to be run", err)
		}
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// checkout is the directory of Twill's own go.mod, at or above the working directory.
func checkout() (string, bool) {
	dir, err := os.Getwd()
	for err == nil {
		data, readErr := os.ReadFile(filepath.Join(dir, "go.mod"))
		if readErr == nil && strings.HasPrefix(string(data), "module github.com/twill-net/twill\n") {
			return dir, true
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return "", false
}
