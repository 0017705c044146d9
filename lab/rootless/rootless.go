// Package rootless runs labs for users without root. A holder, one process for each user, has a user namespace in which it
// is root, and mount, network and pid namespaces of its own. A program cannot join another's user namespace once it has
// threads, as every Go program does: so the holder runs commands for those who ask on a socket, with their terminal,
// environment and working directory, and ends with the user's last lab.
package rootless

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// variable is set in the environment of what the holder runs: to the directory of the labs' state.
const variable = "TWILL_ROOTLESS"

// Inside reports whether this process runs in the holder's namespaces.
func Inside() bool { return os.Getenv(variable) != "" && os.Geteuid() == 0 }

// RefuseBPF returns an error if this process runs in the holder's namespaces, where what takes eBPF programs cannot be done.
func RefuseBPF(what string) error {
	if !Inside() {
		return nil
	}
	return fmt.Errorf("%s needs root (sudo): the kernel takes eBPF programs from nobody else", what)
}

// LabDir is where the caller's labs keep their state, and empty if the caller is root.
func LabDir() string {
	switch {
	case Inside():
		return os.Getenv(variable)
	case os.Geteuid() == 0:
		return ""
	}
	return places(base()).labs
}

// base is the user's runtime directory. Where no login gave one, it is below the directory for temporary files.
func base() string {
	return cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), filepath.Join(os.TempDir(), fmt.Sprintf("twill-%d", os.Geteuid())))
}

// paths are a user's, below the runtime directory.
type paths struct{ base, own, labs, socket string }

func places(base string) paths {
	own := filepath.Join(base, "twill")
	return paths{base, own, filepath.Join(own, "lab"), filepath.Join(own, "holder")}
}

// maxSocket is the longest path that a socket's address has room for.
const maxSocket = 107

// check makes the runtime directory, and returns an error if others may write there.
func (p paths) check() error {
	if !filepath.IsAbs(p.base) || len(p.socket) > maxSocket {
		return fmt.Errorf("XDG_RUNTIME_DIR %s: want an absolute path of at most %d characters", p.base,
			maxSocket-len(p.socket)+len(p.base))
	}
	if err := os.Mkdir(p.base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory of labs: %w", err)
	}
	info, err := os.Lstat(p.base)
	if err != nil {
		return fmt.Errorf("look at the directory of labs: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: want a directory of your own to which nobody else may write: its mode is %v, its owner the user %d",
			p.base, info.Mode(), stat.Uid)
	}
	return nil
}

// lock keeps clients from starting two holders, and a holder from ending while a client connects.
func lock(base string, how int) (*os.File, error) {
	dir, err := os.Open(base)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), how); err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", base, err)
	}
	return dir, nil
}
