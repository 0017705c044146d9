package plugin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"
)

// indexDir is a directory in the store with a second name (a hard link) for every reservation that this plugin
// made: <hash of the owner>-<range set>. It answers two questions without reading the reservations: whether an
// owner has one already, and whether an owner has none at all, by comparing the inode numbers that reading the two
// directories gives. It is never believed alone: what host-local reserved is not in it, and host-local, which
// looks into every file below the store, removes the second name with the first.
const indexDir = ".twill"

// indexName begins the names of everything that is kept for o.
func indexName(o owner) string { return fmt.Sprintf("%016x-", ownerHash(o)) }

func (s *store) indexPath(o owner, set int) string {
	return filepath.Join(s.dir, indexDir, indexName(o)+strconv.Itoa(set))
}

// draft writes the file that becomes a reservation of o as soon as it is linked to an address, and gives its path.
func (s *store) draft(o owner, set int) (string, error) {
	path := s.indexPath(o, set)
	err := writeNew(path, o.String())
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		err = writeNew(path, o.String())
	}
	if !errors.Is(err, fs.ErrExist) {
		return path, err
	}
	// A process that was killed left it. If it has an address, its owner was added before and not deleted.
	var stat syscall.Stat_t
	if err := syscall.Lstat(path, &stat); err == nil && stat.Nlink > 1 {
		return "", failure(types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID %s has an address for %s already: "+
			"want a DEL before another ADD", o.container, o.dev)
	}
	if err := os.Remove(path); err != nil {
		return "", err
	}
	return path, writeNew(path, o.String())
}

// undraft removes the second names of o's reservations of the first range sets; all of them if sets is negative.
func (s *store) undraft(o owner, sets int) error {
	for i := 0; sets < 0 || i < sets; i++ {
		err := os.Remove(s.indexPath(o, i))
		if errors.Is(err, fs.ErrNotExist) && sets < 0 {
			return nil
		}
		if absent(err) != nil {
			return err
		}
	}
	return nil
}

// drafts returns how many range sets the index has an entry of o for.
func (s *store) drafts(o owner) (n int) {
	for {
		if _, err := os.Lstat(s.indexPath(o, n)); err != nil {
			return n
		}
		n++
	}
}

// inodes is the inode numbers of all index entries: those of o, and the others'.
func (s *store) inodes(o owner) (own, others map[uint64]string, err error) {
	own, others = map[uint64]string{}, map[uint64]string{}
	mine := indexName(o)
	err = entries(filepath.Join(s.dir, indexDir), func(inode uint64, name string) {
		switch {
		case strings.HasPrefix(name, mine):
			own[inode] = name
		case isIndexName(name):
			others[inode] = ""
		}
	})
	return own, others, err
}

// isIndexName leaves out what else is in the directory.
func isIndexName(name string) bool {
	_, set, ok := strings.Cut(name, "-")
	return ok && set != "" && set[0] <= '9'
}

// search returns every address that o has, and whether the index has anything of it. It opens only the files that the
// index does not know. Files of the old form, with the container id only, count where there is none of the new form: that
// is host-local's rule.
func (s *store) search(o owner) (found []netip.Addr, indexed bool, err error) {
	own, others, err := s.inodes(o)
	if err != nil {
		return nil, false, err
	}
	var old, unknown []netip.Addr
	err = entries(s.dir, func(inode uint64, name string) {
		if _, known := others[inode]; known {
			return
		}
		a, err := netip.ParseAddr(name)
		if err != nil {
			return
		}
		if _, known := own[inode]; known {
			found = append(found, a)
			return
		}
		unknown = append(unknown, a)
	})
	err = errors.Join(err, s.read(unknown, func(a netip.Addr, content []byte) {
		switch in := parseOwner(content); {
		case !o.owns(content):
		case in.dev == "":
			old = append(old, a)
		default:
			found = append(found, a)
		}
	}))
	if len(found) == 0 {
		found = old
	}
	return found, len(own) > 0, err
}

// forgetIndex removes what the index has of o and no address any more.
func (s *store) forgetIndex(o owner) error {
	own, _, err := s.inodes(o)
	for _, name := range own {
		if isIndexName(name) {
			err = errors.Join(err, absent(os.Remove(filepath.Join(s.dir, indexDir, name))))
		}
	}
	return err
}

// entries calls f with the inode number and the name of every entry of a directory, which the kernel gives in one
// go: os.ReadDir has to ask for each entry's number. A directory that is not there has no entries.
func entries(dir string, f func(inode uint64, name string)) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return absent(&os.PathError{Op: "open", Path: dir, Err: err})
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: dir, Err: err}
		}
		if n == 0 {
			return nil
		}
		eachEntry(buf[:n], f)
	}
}

// eachEntry decodes struct linux_dirent64: inode, offset, length of the record, type, name ending in zero.
func eachEntry(records []byte, f func(inode uint64, name string)) {
	const header = 19
	for len(records) > header {
		length := int(binary.NativeEndian.Uint16(records[16:]))
		if length <= header || length > len(records) {
			return
		}
		name := records[header:length]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		f(binary.NativeEndian.Uint64(records), string(name))
		records = records[length:]
	}
}
