package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Programs are the binaries that a lab runs.
type Programs struct {
	Agent  string   // twilld
	Plugin string   // twill; its directory is libcni's plugin path
	Server []string // a command that passes its further arguments to Serve: twillctl lab serve
}

// FindPrograms looks for Twill's binaries next to the running executable, then in bin below the working
// directory or one above it, then in $TWILL_BIN_DIR.
func FindPrograms() (Programs, error) {
	var dirs []string
	self, err := os.Executable()
	if err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	if root, ok := checkout(); ok {
		dirs = append(dirs, filepath.Join(root, "bin"))
	}
	if dir := os.Getenv("TWILL_BIN_DIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		p := Programs{Agent: filepath.Join(dir, "twilld"), Plugin: filepath.Join(dir, "twill")}
		if isFile(p.Agent) && isFile(p.Plugin) {
			p.Server = []string{filepath.Join(dir, "twillctl"), "lab", "serve"}
			if filepath.Base(self) == "twillctl" {
				p.Server[0] = self
			}
			return p, nil
		}
	}
	return Programs{}, fmt.Errorf("no twilld and twill in %s: run `make build`, or say where they are with TWILL_BIN_DIR",
		strings.Join(dirs, " or "))
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
