package facts

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
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

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// portOwner returns the process that holds a UDP port which a device of a family needs, empty if none does. A socket
// of the other family counts if a process has it, because it may be for both families; if no process has it, it is
// the kernel's own, for the other family's device.
func portOwner(port int, family netstate.Family) string {
	const local, inode = 1, 9 // columns
	for _, table := range []struct {
		path   string // of the calling thread: /proc/net is the main thread's
		family netstate.Family
	}{{"/proc/thread-self/net/udp", netstate.IPv4}, {"/proc/thread-self/net/udp6", netstate.IPv6}} {
		for line := range strings.Lines(read(table.path)) {
			f := strings.Fields(line)
			if len(f) <= inode || !strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) || f[inode] == "0" {
				continue
			}
			holder := socketHolder(f[inode])
			switch {
			case holder == "" && table.family != family:
				continue
			case holder == "":
				holder = "a process that is not seen from here (socket " + f[inode] + ")"
			}
			return "UDP port " + strconv.Itoa(port) + " is held by " + holder
		}
	}
	return ""
}

// socketHolder returns the process with a socket, empty if none is seen.
func socketHolder(inode string) string {
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
			dir := filepath.Dir(filepath.Dir(fd))
			return fmt.Sprintf("%s (process %s)", read(dir+"/comm"), filepath.Base(dir))
		}
	}
	return ""
}
