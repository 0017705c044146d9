package facts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// read returns the trimmed contents of a file, empty if it cannot be read.
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// sysctls reads those of the names that exist. Below /proc/sys/net they are those of the calling thread's namespace.
func sysctls(names []string) map[string]string {
	values := map[string]string{}
	for _, name := range names {
		if value := read(filepath.Join("/proc/sys", name)); value != "" {
			values[name] = value
		}
	}
	return values
}

// isReadOnly reports whether nobody may write a parameter here, not even root.
func isReadOnly(name string) bool {
	info, err := os.Stat(filepath.Join("/proc/sys", name))
	return err == nil && info.Mode()&0o222 == 0
}

// mayLook returns an error if the kernel does not show the calling thread its rules: what cannot be seen would be taken for
// missing.
func mayLook() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errors.New("run as root: without CAP_NET_ADMIN neither the firewall's rules nor what the agent made can be looked at")
	}
	return nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
