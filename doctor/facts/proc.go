package facts

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
)

// netDir is this thread's view: /proc/net is the main thread's.
const netDir = "/proc/thread-self/net"

// sysctls reads those of the names that exist. What is below /proc/sys/net is the calling thread's namespace.
func sysctls(names []string) map[string]string {
	values := map[string]string{}
	for _, name := range names {
		if data, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			values[name] = strings.TrimSpace(string(data))
		}
	}
	return values
}

// Columns of /proc/net/route.
const (
	routeDev = iota
	routeDst
	routeVia
	_
	_
	_
	_
	routeMask
	routeColumns = 11
)

// routes are all IPv4 routes of the main table, from /proc/net/route: addresses there are 32-bit numbers in the
// machine's own byte order.
func routes() ([]doctor.Route, error) {
	data, err := os.ReadFile(netDir + "/route")
	if err != nil {
		return nil, err
	}
	var all []doctor.Route
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < routeColumns || f[0] == "Iface" {
			continue
		}
		dst, err1 := hexAddr(f[routeDst])
		via, err2 := hexAddr(f[routeVia])
		mask, err3 := hexAddr(f[routeMask])
		if err1 != nil || err2 != nil || err3 != nil {
			continue
		}
		r := doctor.Route{Dst: netip.PrefixFrom(dst, ones(mask)), Dev: f[routeDev]}
		if !via.IsUnspecified() {
			r.Via = via
		}
		all = append(all, r)
	}
	return all, nil
}

func hexAddr(text string) (netip.Addr, error) {
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil {
		return netip.Addr{}, err
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b), nil
}

func ones(mask netip.Addr) int {
	bits := 0
	for _, b := range mask.As4() {
		for ; b != 0; b <<= 1 {
			bits++
		}
	}
	return bits
}

// portOwner is the process that holds a UDP port, empty if none does. The kernel's own sockets have no inode.
func portOwner(port int) string {
	for _, file := range []string{"/udp", "/udp6"} {
		data, err := os.ReadFile(netDir + file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 10 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) || f[9] == "0" {
				continue
			}
			return "UDP port " + strconv.Itoa(port) + " is held by " + socketHolder(f[9])
		}
	}
	return ""
}

// socketHolder finds the process with a socket.
func socketHolder(inode string) string {
	want := "socket:[" + inode + "]"
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return "socket " + inode
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == want {
			dir := filepath.Dir(filepath.Dir(fd))
			comm, _ := os.ReadFile(dir + "/comm")
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), filepath.Base(dir))
		}
	}
	return "a process that is not seen from here (socket " + inode + ")"
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
