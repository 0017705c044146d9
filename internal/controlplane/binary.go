package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrNoBinary is returned for a program that has not been built.
var ErrNoBinary = errors.New("run `make kube-tools`")

// FindBinary returns the path of a program of a control plane such as kube-apiserver or etcd. It looks in
// $TWILL_KUBE_BIN if that is set, else in bin/kube of the checkout around the working directory, in kube
// beside this executable, and in $PATH.
func FindBinary(name string) (string, error) {
	dirs := binaryDirs()
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil && os.Getenv("TWILL_KUBE_BIN") == "" {
		return path, nil
	}
	return "", fmt.Errorf("find %s in %s: %w", name, strings.Join(dirs, " or "), ErrNoBinary)
}

// binaryDirs gives absolute paths, since a program may be started in another directory.
func binaryDirs() []string {
	if dir := os.Getenv("TWILL_KUBE_BIN"); dir != "" {
		if abs, err := filepath.Abs(dir); err == nil {
			return []string{abs}
		}
		return []string{dir}
	}
	var dirs []string
	if root, ok := repoRoot(); ok {
		dirs = append(dirs, filepath.Join(root, "bin", "kube"))
	}
	if exe, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Join(filepath.Dir(exe), "kube"))
	}
	return dirs
}

var mainModule = regexp.MustCompile(`(?m)^module github\.com/twill-net/twill$`)

// repoRoot walks up to the main module's go.mod, past those of modules below it such as tools/kube.
func repoRoot() (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && mainModule.Match(mod) {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
