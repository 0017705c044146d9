package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/procfs"
)

// legacyLayout is how the kernel gives the legacy tables of a family to a program (linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter_ipv6/ip6_tables.h): a row of entries, each of which has its length and its counters in its head.
type legacyLayout struct {
	names    string // the file in /proc that lists the tables
	domain   int
	level    int
	length   int // offset of next_offset in struct ipt_entry
	counters int // offset of counters
}

var legacyLayouts = map[netstate.Family]legacyLayout{
	netstate.IPv4: {"ip_tables_names", unix.AF_INET, unix.SOL_IP, 90, 96},
	netstate.IPv6: {"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 142, 152},
}

// Options of getsockopt, the same in both families.
const (
	legacyGetInfo    = 64 // IPT_SO_GET_INFO
	legacyGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// Sizes in bytes.
const (
	legacyName   = 32 // of a table's name
	legacyInfo   = 84 // of struct ipt_getinfo, which ends with the size of all entries
	legacyHead   = 40 // of struct ipt_get_entries without its entries; the size of them follows the name
	countersSize = 16 // of struct xt_counters
)

// legacyNames returns the names of a family's legacy tables that exist in this network namespace.
func legacyNames(family netstate.Family) ([]string, error) {
	names, err := procfs.Read("/proc/thread-self/net/" + legacyLayouts[family].names)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the kernel's module there is no such file
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(names), nil
}

var seed = maphash.MakeSeed()

// fingerprint returns a number that is the same as long as all legacy tables hold the same, whatever their counters
// say. It starts no process.
func fingerprint() (uint64, error) {
	var hash maphash.Hash
	hash.SetSeed(seed)
	for _, family := range netstate.Families {
		names, err := legacyNames(family)
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			entries, err := legacyEntries(legacyLayouts[family], name)
			if err != nil {
				return 0, fmt.Errorf("read the legacy table %s of %s: %w", name, family, err)
			}
			fmt.Fprintf(&hash, "%s %s %d\n", family, name, len(entries))
			_, _ = hash.Write(entries)
		}
	}
	return hash.Sum64(), nil
}

// legacyEntries returns the entries of a table, with zeros for their counters.
func legacyEntries(l legacyLayout, name string) ([]byte, error) {
	fd, err := unix.Socket(l.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range 10 { // EAGAIN: it was altered in between
		var entries []byte
		if entries, err = l.read(fd, name); !errors.Is(err, unix.EAGAIN) {
			return entries, err
		}
	}
	return nil, err
}

func (l legacyLayout) read(fd int, name string) ([]byte, error) {
	info := make([]byte, legacyInfo)
	copy(info, name)
	if err := getsockopt(fd, l.level, legacyGetInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[legacyInfo-4:])
	data := make([]byte, legacyHead+size)
	copy(data, name)
	binary.NativeEndian.PutUint32(data[legacyName:], size)
	if err := getsockopt(fd, l.level, legacyGetEntries, data); err != nil {
		return nil, err
	}
	l.clear(data[legacyHead:])
	return data[legacyHead:], nil
}

// clear sets the counters of all entries to zero.
func (l legacyLayout) clear(entries []byte) {
	for len(entries) >= l.counters+countersSize {
		clear(entries[l.counters:][:countersSize])
		length := int(binary.NativeEndian.Uint16(entries[l.length:]))
		if length == 0 || length > len(entries) {
			return
		}
		entries = entries[length:]
	}
}

// getsockopt fills a buffer, whose beginning says what is asked for.
func getsockopt(fd, level, option int, buffer []byte) error {
	length := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
