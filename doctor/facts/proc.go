package facts

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
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

// routes are all routes of the main table.
func routes() ([]doctor.Route, error) {
	four, err4 := routes4()
	six, err6 := routes6()
	if errors.Is(err6, fs.ErrNotExist) {
		err6 = nil // no IPv6 here
	}
	return append(four, six...), errors.Join(err4, err6)
}

// Columns of /proc/net/ipv6_route, and flags of its routes.
const (
	route6Dst     = 0
	route6Bits    = 1
	route6Via     = 4
	route6Flags   = 8
	route6Dev     = 9
	route6Columns = 10
	flagCache     = 1 << 24 // RTF_CACHE: learnt, for one address
)

// routes6 are the IPv6 routes, from /proc/net/ipv6_route; what leads to this host itself is left out.
func routes6() ([]doctor.Route, error) {
	data, err := os.ReadFile(netDir + "/ipv6_route")
	if err != nil {
		return nil, err
	}
	var all []doctor.Route
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < route6Columns || f[route6Dev] == "lo" {
			continue
		}
		dst, err1 := hex.DecodeString(f[route6Dst])
		via, err2 := hex.DecodeString(f[route6Via])
		bits, err3 := strconv.ParseUint(f[route6Bits], 16, 8)
		flags, err4 := strconv.ParseUint(f[route6Flags], 16, 32)
		if errors.Join(err1, err2, err3, err4) != nil || len(dst) != 16 || len(via) != 16 || flags&flagCache != 0 {
			continue
		}
		r := doctor.Route{Dst: netip.PrefixFrom(netip.AddrFrom16([16]byte(dst)), int(bits)), Dev: f[route6Dev]}
		if next := netip.AddrFrom16([16]byte(via)); !next.IsUnspecified() {
			r.Via = next
		}
		all = append(all, r)
	}
	return all, nil
}

// routes4 are the IPv4 routes, from /proc/net/route: addresses there are 32-bit numbers in the
// machine's own byte order.
func routes4() ([]doctor.Route, error) {
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

// portOwner is the process that holds a UDP port against a device of one address family, empty if none does. A socket of
// the other family counts if a process has it, because it may be for both; if none has, it is the kernel's own, of the
// other family's device.
func portOwner(port int, is4 bool) string {
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
			holder := socketHolder(f[9])
			if holder == "" && (file == "/udp") != is4 {
				continue
			}
			if holder == "" {
				holder = "a process that is not seen from here (socket " + f[9] + ")"
			}
			return "UDP port " + strconv.Itoa(port) + " is held by " + holder
		}
	}
	return ""
}

// socketHolder finds the process with a socket, empty if none is seen.
func socketHolder(inode string) string {
	want := "socket:[" + inode + "]"
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == want {
			dir := filepath.Dir(filepath.Dir(fd))
			comm, _ := os.ReadFile(dir + "/comm")
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), filepath.Base(dir))
		}
	}
	return ""
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
