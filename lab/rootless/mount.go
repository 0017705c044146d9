package rootless

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount gives the holder's mount namespace a /proc of its processes, and a /run in which it may write: names of network
// namespaces and locks are there. Of the machine's /run only the user's directory is to be seen.
func mount(base string) (err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("proc", "/proc", "proc", safe|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return err
	}
	own, err := os.Open(base)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Mount("tmpfs", "/run", "tmpfs", safe, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if !strings.HasPrefix(base, "/run/") {
		return nil
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", own.Fd()), base, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", base, err)
	}
	return nil
}
