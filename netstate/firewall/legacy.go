package firewall

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Legacy iptables tables are read with getsockopt, as iptables-legacy does (linux/netfilter_ipv4/ip_tables.h and
// its IPv6 twin), because starting a process for it every second is what this package is there to avoid.
// A table that is asked for by name comes into being, so only those that /proc names are asked for.

// Numbers of both families' getsockopt interface.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65
	infoSize     = 84 // struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size
	entriesStart = 40 // struct ipt_get_entries: name, size, padding
)

// layout is where the fields of struct ipt_entry or ip6t_entry are.
type layout struct {
	domain, level        int
	names                string
	nextOffset, counters int
	minEntry             int
}

func layoutOf(family netstate.Family) layout {
	if family == netstate.IPv6 {
		return layout{unix.AF_INET6, unix.SOL_IPV6, "/proc/thread-self/net/ip6_tables_names", 142, 152, 168}
	}
	return layout{unix.AF_INET, unix.SOL_IP, "/proc/thread-self/net/ip_tables_names", 90, 96, 112}
}

// observeLegacy finds the iptables mode's chains in ip_tables.
func (f *Firewall) observeLegacy() ([]found, error) {
	var all []found
	var errs []error
	for _, family := range netstate.Families {
		for _, role := range roles {
			p := place{legacy, family, role}
			fingerprint, exists, err := fingerprintLegacy(p)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if !exists {
				delete(f.lists, p)
				continue
			}
			c, err := f.list(p, fingerprint)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, found{legacy, c})
		}
	}
	return all, errors.Join(errs...)
}

// fingerprintLegacy is a hash over a table without its counters, and whether our chain is in it. A chain's name
// stands in its head entry; a jump cannot outlive its chain.
func fingerprintLegacy(p place) (sum [sha256.Size]byte, exists bool, err error) {
	s := siteOf(p.role)
	tables, err := legacyTables(p.family)
	if err != nil || !slices.Contains(tables, s.table) {
		return sum, false, err
	}
	blob, err := legacyEntries(p.family, s.table)
	if err != nil {
		return sum, false, fmt.Errorf("read legacy table %s: %w", s.table, err)
	}
	maskCounters(blob, layoutOf(p.family))
	return sha256.Sum256(blob), bytes.Contains(blob, append([]byte(s.chain), 0)), nil
}

// legacyTables are the tables that exist in this network namespace; none if the kernel part is not loaded.
func legacyTables(family netstate.Family) ([]string, error) {
	names, err := os.ReadFile(layoutOf(family).names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// legacyEntries is a table's rules as the kernel holds them. Between the question for its size and the one for
// its rules the table can change: then the second fails with EAGAIN and both are asked again.
func legacyEntries(family netstate.Family, table string) ([]byte, error) {
	for range 10 {
		info, err := legacyInfo(family, table)
		if err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoSize-4:])
		blob := make([]byte, entriesStart+int(size))
		copy(blob, table)
		binary.NativeEndian.PutUint32(blob[32:], size)
		switch err := getsockopt(layoutOf(family), soGetEntries, blob); {
		case err == nil:
			return blob[entriesStart:], nil
		case !errors.Is(err, unix.EAGAIN):
			return nil, err
		}
	}
	return nil, errMoved
}

func legacyInfo(family netstate.Family, table string) ([]byte, error) {
	info := make([]byte, infoSize)
	copy(info, table)
	return info, getsockopt(layoutOf(family), soGetInfo, info)
}

// getsockopt asks with buf as the question, and has the answer in it. Any socket of the family does; a raw one,
// which iptables takes, would need CAP_NET_RAW.
func getsockopt(l layout, option int, buf []byte) error {
	fd, err := unix.Socket(l.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(l.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entries are the entries of a table, in their order and without copying; see struct ipt_entry.
func entries(blob []byte, l layout) [][]byte {
	var all [][]byte
	for len(blob) >= l.minEntry {
		next := int(binary.NativeEndian.Uint16(blob[l.nextOffset:]))
		if next < l.minEntry || next > len(blob) {
			break
		}
		all = append(all, blob[:next:next])
		blob = blob[next:]
	}
	return all
}

// maskCounters zeroes the counters of every entry: two 64 bit numbers.
func maskCounters(blob []byte, l layout) {
	for _, e := range entries(blob, l) {
		clear(e[l.counters : l.counters+16])
	}
}

// targetHead is the size of struct xt_entry_target: target_size, name[29], revision. The data comes after it: a
// chain's name for the target ERROR, which heads a chain, and a verdict for the one without name, which is where
// to go on in the table, or negative.
const targetHead = 32

func (l layout) target(e []byte) (name string, data []byte) {
	start := int(binary.NativeEndian.Uint16(e[l.nextOffset-2:]))
	if start+targetHead+4 > len(e) {
		return "", nil
	}
	return cstring(e[start+2 : start+targetHead-1]), e[start+targetHead:]
}

// foreignEntries is the number of entries that are neither in a chain of ours nor jumps to one.
func foreignEntries(blob []byte, l layout, chains []string) int {
	all, offset, inside, count := entries(blob, l), 0, false, 0
	starts := map[int]bool{}
	for _, e := range all {
		offset += len(e)
		if name, data := l.target(e); name == "ERROR" {
			if inside = slices.Contains(chains, cstring(data)); inside {
				starts[offset] = true
			}
		}
		if !inside {
			count++
		}
	}
	for _, e := range all {
		name, data := l.target(e)
		if name == "" && len(data) >= 4 && starts[int(int32(binary.NativeEndian.Uint32(data)))] {
			count--
		}
	}
	return count
}

// bareEntries is the number of entries that a table without rules has: one for each hook, and the end mark.
var bareEntries = map[string]int{"filter": 4, "nat": 5, "mangle": 6, "raw": 3, "security": 4}

// legacyInUse says whether any legacy table has a rule that is not ours.
func legacyInUse() (bool, error) {
	for _, family := range netstate.Families {
		tables, err := legacyTables(family)
		if err != nil {
			return false, err
		}
		for _, table := range tables {
			blob, err := legacyEntries(family, table)
			if err != nil {
				return false, fmt.Errorf("read legacy table %s: %w", table, err)
			}
			if foreignEntries(blob, layoutOf(family), chainsIn(table)) > bareEntries[table] {
				return true, nil
			}
		}
	}
	return false, nil
}

// chainsIn are the names of our chains in a table.
func chainsIn(table string) []string {
	var chains []string
	for _, role := range roles {
		if s := siteOf(role); s.table == table {
			chains = append(chains, s.chain)
		}
	}
	return chains
}
