package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab/rootless"
)

// BPFDir is the lab's own BPF file system, in which agents with a fast path pin their programs.
func (l *Lab) BPFDir() string { return filepath.Join(l.dir, "bpf") }

// HasFastPath reports whether a backend has one; an empty name is the one that labs have by default.
func HasFastPath(backend string) bool {
	return backend == "" || backend == "vxlan" || backend == "host-gw"
}

// fastPathFlags are what an agent is told about the fast path.
func (l *Lab) fastPathFlags() []string {
	if !l.spec.FastPath {
		return nil
	}
	return []string{"--fast-path=on", "--bpffs=" + l.BPFDir()}
}

// mountBPF mounts that file system: what is pinned there goes with the lab.
func (l *Lab) mountBPF() error {
	if !l.spec.FastPath {
		return nil
	}
	if err := rootless.RefuseBPF("the fast path"); err != nil {
		return err
	}
	err := os.MkdirAll(l.BPFDir(), 0o700)
	if err == nil {
		err = unix.Mount("bpf", l.BPFDir(), "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	}
	if err != nil {
		return fmt.Errorf("mount a BPF file system for the fast path: %w", err)
	}
	return nil
}

// unmountBPF unmounts it, as often as it was mounted.
func (l *Lab) unmountBPF() error {
	for {
		switch err := unix.Unmount(l.BPFDir(), unix.MNT_DETACH); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("unmount the lab's BPF file system: %w", err)
		}
	}
}
