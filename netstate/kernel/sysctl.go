package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

const procSys = "/proc/sys"

// hostProcSys is where a container that is not privileged finds the host's /proc/sys, if its pod mounts it there:
// its own is read-only. What is below net is that of the process' network namespace wherever it is mounted.
const hostProcSys = "/host/proc/sys"

// observeSysctls adds the named sysctls; one that does not exist (no such device, IPv6 compiled out) is left
// out, so that wanting it is a change that fails with its name.
func observeSysctls(names []string, state netstate.State) error {
	var errs error
	for _, name := range names {
		value, err := readSysctl(name)
		switch {
		case err == nil:
			state.Add(netstate.Sysctl{Name: name, Value: value})
		case !errors.Is(err, fs.ErrNotExist):
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// readSysctl reads by system calls alone: several are read four times a second, and an os.File would be registered with the
// runtime's poller each time.
func readSysctl(name string) (string, error) {
	path := filepath.Join(procSys, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, &fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	var value [256]byte // one number each
	n, err := unix.Read(fd, value[:])
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, &fs.PathError{Op: "read", Path: path, Err: err})
	}
	return strings.TrimSpace(string(value[:n])), nil
}

func writeSysctl(s netstate.Sysctl) error {
	err := os.WriteFile(filepath.Join(procSys, s.Name), []byte(s.Value), 0)
	if errors.Is(err, unix.EROFS) {
		if again := os.WriteFile(filepath.Join(hostProcSys, s.Name), []byte(s.Value), 0); !errors.Is(again, fs.ErrNotExist) {
			err = again
		}
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Value, err)
	}
	return nil
}
