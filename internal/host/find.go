package host

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Find names the running process with this pid for good.
func Find(pid int) (Process, error) {
	started, _, err := stat(pid)
	return Process{PID: pid, Started: started}, err
}

// FindMarked finds the running processes that have a variable, NAME=VALUE, in their environment, this process aside.
func FindMarked(variable string) ([]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := Find(pid)
		if err != nil {
			continue // it has ended
		}
		environ, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // it has ended, or is of somebody with more rights
		}
		if slices.ContainsFunc(
			bytes.Split(environ, []byte{0}),
			func(v []byte) bool { return string(v) == variable },
		) &&
			p.Running() {
			found = append(found, p)
		}
	}
	return found, nil
}
