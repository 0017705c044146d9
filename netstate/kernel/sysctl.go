package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/procfs"
)

const procSys = "/proc/sys"

// hostProcSys is where a container that is not privileged finds the host's /proc/sys, if its pod mounts it there:
// its own is read-only. What is below net is that of the process' network namespace wherever it is mounted.
var hostProcSys = "/host/proc/sys"

// observeSysctls adds the wanted sysctls; one that does not exist (no such device, IPv6 compiled out) is left
// out, so that wanting it is a change that fails with its name.
func observeSysctls(wanted []netstate.Sysctl, state netstate.State) error {
	var errs error
	for _, want := range wanted {
		value, err := readSysctl(want.Name)
		switch {
		case err == nil:
			state.Add(want.Observed(value))
		case !errors.Is(err, fs.ErrNotExist):
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

func readSysctl(name string) (string, error) {
	value, err := procfs.Read(filepath.Join(procSys, name))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return value, nil
}

// forwardsIPv6 makes a router of the host, and default/forwarding one of each device that comes.
const forwardsIPv6, newForwardsIPv6 = "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding"

// putSysctl writes a parameter and nothing else. The kernel would make routers of the devices to come as well, and those
// take no router advertisements; whether packets are forwarded does not depend on it.
func putSysctl(s netstate.Sysctl) error {
	if s.Name != forwardsIPv6 {
		return writeSysctl(s)
	}
	was, err := readSysctl(newForwardsIPv6)
	if err := errors.Join(err, writeSysctl(s)); err != nil {
		return err
	}
	return writeSysctl(netstate.Sysctl{Name: newForwardsIPv6, Value: was})
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
