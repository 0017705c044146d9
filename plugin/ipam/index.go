package ipam

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

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// indexDir is a directory in the store with a second name (a hard link) for every reservation that this
// plugin made: <hash of the owner>-<range set>. It answers two questions without reading the reservations:
// whether an owner has one already, and whether an owner has none at all, by comparing the inode numbers that
// reading the two directories gives. It is never believed alone: what host-local reserved is not in it, and
// host-local, which looks into every file below the store, removes the second name with the first.
const indexDir = ".twill"

// The hexadecimal digits of an owner's hash: those of a name in the index, and those that end it, as many as fit into an
// interface's name.
const (
	hashDigits = 16
	EndDigits  = 11
)

// indexFile returns the path of something that is kept for o.
func (s Store) indexFile(o Owner, what string) string {
	return filepath.Join(string(s), indexDir, fmt.Sprintf("%0*x-%s", hashDigits, o.Hash(), what))
}

// Record returns the path of the file in which is noted what plugins were run for o.
func (s Store) Record(o Owner) string { return s.indexFile(o, "addons") }

// isReservation reports whether an entry of the index is a second name for a reservation.
func isReservation(entry string) bool {
	_, set, _ := strings.Cut(entry, "-")
	return set != "" && set[0] <= '9'
}

// prepare writes the file that becomes a reservation of o as soon as it is linked to an address, and returns
// its path.
func (s Store) prepare(o Owner, set int) (string, error) {
	path := s.indexFile(o, strconv.Itoa(set))
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = writeNew(path, o.String())
	}
	if !errors.Is(err, fs.ErrExist) {
		return path, err
	}
	// A process that was killed left it. If it has an address, its owner was added before and not deleted.
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err == nil && stat.Nlink > 1 {
		return "", cnierr.New(types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID %s has an address for %s already: "+
			"want a DEL before another ADD", o.Container, o.Dev)
	}
	if err := os.Remove(path); err != nil {
		return "", err
	}
	return path, writeNew(path, o.String())
}

func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// indexed returns the paths of the entries that the index has of o's reservations.
func (s Store) indexed(o Owner) (all []string) {
	for {
		path := s.indexFile(o, strconv.Itoa(len(all)))
		if _, err := os.Lstat(path); err != nil {
			return all
		}
		all = append(all, path)
	}
}

// Intact reports whether an owner whose hash ends in these hexadecimal digits has all reservations that the index knows of.
// It reads no file, only the two directories; nobody has any where they cannot be read.
func (s Store) Intact() func(digits string) bool {
	there, intact := map[uint64]bool{}, map[string]bool{}
	_ = readDir(string(s), func(inode uint64, _ string) { there[inode] = true })
	_ = readDir(filepath.Join(string(s), indexDir), func(inode uint64, name string) {
		if hash, _, _ := strings.Cut(name, "-"); isReservation(name) && len(hash) == hashDigits {
			digits := hash[hashDigits-EndDigits:]
			before, known := intact[digits]
			intact[digits] = there[inode] && (before || !known)
		}
	})
	return func(digits string) bool { return intact[digits] }
}

// search returns every address that o has, and the entries that the index has of it. It opens only the files
// that the index does not know. Files of the old form, with the container id only, count where there is none
// of the new form: that is host-local's rule.
func (s Store) search(o Owner) (found []netip.Addr, entries []string, err error) {
	own, other := map[uint64]bool{}, map[uint64]bool{}
	prefix := filepath.Base(s.indexFile(o, ""))
	err = Unindexed(readDir(filepath.Join(string(s), indexDir), func(inode uint64, name string) {
		switch {
		case !isReservation(name):
		case strings.HasPrefix(name, prefix):
			own[inode], entries = true, append(entries, filepath.Join(string(s), indexDir, name))
		default:
			other[inode] = true
		}
	}))
	if err != nil {
		return nil, nil, err
	}
	var old []netip.Addr
	err = Unindexed(readDir(string(s), func(inode uint64, name string) {
		a, err := netip.ParseAddr(name)
		if err != nil || other[inode] {
			return
		}
		if own[inode] {
			found = append(found, a)
			return
		}
		content, _ := readRegular(s.file(a))
		switch {
		case !o.owns(content):
		case parseOwner(content).Dev == "":
			old = append(old, a)
		default:
			found = append(found, a)
		}
	}))
	if len(found) == 0 {
		found = old
	}
	return found, entries, err
}

// readDir calls f with the inode number and the name of every entry of a directory, which the kernel gives in
// one go: os.ReadDir has to ask for each entry's number. A directory that does not exist has no entries.
func readDir(dir string, f func(inode uint64, name string)) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Absent(&os.PathError{Op: "open", Path: dir, Err: err})
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
		if name := unix.ByteSliceToString(records[header:length]); name != "." && name != ".." {
			f(binary.NativeEndian.Uint64(records), name)
		}
		records = records[length:]
	}
}
