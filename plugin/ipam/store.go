// Package ipam gives pods addresses of the node's ranges and keeps what it gave in host-local's format, so
// that a node can go from flannel to Twill and back without restarting its pods.
package ipam

import (
	"errors"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/smallfile"
)

// Store is the directory of one network's reservations, in the format of host-local: one file for each
// address, named after it, with the container id, CR LF and the interface's name in it;
// last_reserved_ip.<range index>; and lock, on which whoever changes something holds a flock. The directory
// indexDir in it is our own.
type Store string

// Owner is the interface of a pod that has a reservation.
type Owner struct{ Container, Dev string }

func (o Owner) String() string { return strings.TrimSpace(o.Container) + "\r\n" + o.Dev }

// Hash returns a number for the names of what belongs to the owner: its veth pair and its files.
func (o Owner) Hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(o.String()))
	return h.Sum64()
}

func parseOwner(content []byte) Owner {
	container, dev, _ := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
	return Owner{container, dev}
}

// owns reports whether a file with that content is o's.
func (o Owner) owns(content []byte) bool { return o.Is(parseOwner(content)) }

// Is reports whether the owner in a reservation is o; host-local once wrote the container id only.
func (o Owner) Is(in Owner) bool {
	return in.Container == strings.TrimSpace(o.Container) && (in.Dev == o.Dev || in.Dev == "")
}

// file returns the path of the reservation of a.
func (s Store) file(a netip.Addr) string { return filepath.Join(string(s), a.String()) }

// Neighbours returns the stores of the other networks beside s. flannel's chain keeps its reservations under
// the name in flannel's conflist, which is not cbr0 everywhere: after a migration pods have addresses of this
// node's lease that are reserved in another store.
func (s Store) Neighbours() []Store {
	var all []Store
	parent := filepath.Dir(string(s))
	_ = readDir(parent, func(_ uint64, name string) {
		path := filepath.Join(parent, name)
		if name == filepath.Base(string(s)) {
			return
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() { // all else is somebody's backup
			all = append(all, Store(path))
		}
	})
	return all
}

// reserve gives a to the owner in the file pending and reports whether it was free, here and in other. The
// reservation appears with its content or not at all, because it is a new name for a whole file.
func (s Store) reserve(pending string, a netip.Addr, other []Store) (bool, error) {
	err := os.Link(pending, s.file(a))
	if errors.Is(err, fs.ErrExist) && s.reclaim(a) {
		err = os.Link(pending, s.file(a))
	}
	if err != nil {
		return false, ignore(err, fs.ErrExist)
	}
	// Afterwards: other networks have locks of their own, and of two that take a at once neither would see
	// the other's.
	for _, o := range other {
		if o.mayHold(a) {
			return false, os.Remove(s.file(a))
		}
	}
	return true, nil
}

// reclaim removes the reservation of a if it is an empty file, and reports whether it did. host-local leaves
// one when it dies between creating and writing, as a power loss can of any young file; under the lock nobody
// is about to write it.
func (s Store) reclaim(a netip.Addr) bool {
	info, err := os.Lstat(s.file(a))
	return err == nil && info.Mode().IsRegular() && info.Size() == 0 && os.Remove(s.file(a)) == nil
}

// Has reports whether o has a.
func (s Store) Has(o Owner, a netip.Addr) bool {
	owner, has := s.holder(a)
	return has && o.Is(owner)
}

// holder returns who has a in this store, and reports whether anybody has. It is the one answer for ADD, DEL, GC and the
// agent to what an address in use is: one with a small regular file that is not empty. What else is named after an address
// is nobody's reservation.
func (s Store) holder(a netip.Addr) (Owner, bool) {
	content, _ := readRegular(s.file(a))
	return parseOwner(content), len(content) > 0
}

// mayHold reports whether somebody may have a in this store: also a file that cannot be read now keeps a from others.
func (s Store) mayHold(a netip.Addr) bool {
	info, err := os.Lstat(s.file(a))
	return err == nil && info.Mode().IsRegular() && info.Size() > 0
}

// OwnerOf returns who has a here or in another network's store, and reports whether anybody has.
func (s Store) OwnerOf(a netip.Addr) (Owner, bool) {
	for _, store := range append([]Store{s}, s.Neighbours()...) {
		if owner, has := store.holder(a); has {
			return owner, true
		}
	}
	return Owner{}, false
}

// release gives a back if o has it.
func (s Store) release(o Owner, a netip.Addr) error {
	if !s.Has(o, a) {
		return nil
	}
	return Absent(os.Remove(s.file(a)))
}

// each calls f with every address in use, in no order. It reads all the files, which ADD and DEL never do.
func (s Store) each(f func(netip.Addr, Owner)) error {
	all, err := s.addrs()
	for _, a := range all {
		if owner, has := s.holder(a); has {
			f(a, owner)
		}
	}
	return err
}

// Strangers returns the paths of what is named after an address and is no reservation: a directory, a link, what cannot
// be read. It is passed over, as by host-local, and its address is given to nobody.
func (s Store) Strangers() (paths []string) {
	all, _ := s.addrs()
	for _, a := range all {
		if _, ok := readRegular(s.file(a)); !ok {
			if _, err := os.Lstat(s.file(a)); err == nil {
				paths = append(paths, s.file(a))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// mostRead bounds the size of a file that is read, in bytes.
const mostRead = 1 << 20

// readRegular returns what a regular file holds, and reports false for all else.
func readRegular(path string) (content []byte, ok bool) {
	content, err := smallfile.ReadUnlinked(path, mostRead)
	return content, err == nil
}

// addrs returns the addresses that have a file.
func (s Store) addrs() (all []netip.Addr, err error) {
	err = readDir(string(s), func(_ uint64, name string) {
		if a, err := netip.ParseAddr(name); err == nil {
			all = append(all, a)
		}
	})
	return all, err
}

func (s Store) lastFile(i int) string {
	return filepath.Join(string(s), "last_reserved_ip."+strconv.Itoa(i))
}

// last returns the address that was reserved last from range set i, invalid if that is not known.
func (s Store) last(i int) netip.Addr {
	content, _ := readRegular(s.lastFile(i))
	a, _ := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap()
}

// setLast writes over the old address and cuts off what is left of a longer one: file systems flush a file
// that was emptied first (ext4's auto_da_alloc), and an ADD would wait for the disk. Without the file the
// round only begins again at the start, so an error is no reason to refuse a pod.
func (s Store) setLast(i int, a netip.Addr) {
	f, err := os.OpenFile(s.lastFile(i), os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	n, err := f.WriteString(a.String())
	if info, statErr := f.Stat(); err == nil && statErr == nil && info.Size() > int64(n) {
		_ = f.Truncate(int64(n))
	}
}

// Absent returns err, or nil if it only says that a file does not exist.
func Absent(err error) error { return ignore(err, fs.ErrNotExist) }

// Remove removes a file, if it is there. It looks first: a disk that is read-only or frozen refuses, or has wait, whoever
// would remove what is not there.
func Remove(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return Unindexed(err)
	}
	return Unindexed(os.Remove(path))
}

// Unindexed is Absent of an error about a file in the index, which somebody may have made something else than a directory.
func Unindexed(err error) error { return ignore(Absent(err), unix.ENOTDIR) }

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
