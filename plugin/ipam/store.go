// Package ipam gives pods addresses of the node's ranges and keeps what it gave in host-local's format, so
// that a node can go from flannel to Twill and back without restarting its pods.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// owns reports whether a file with that content is o's; host-local once wrote the container id only.
func (o Owner) owns(content []byte) bool {
	in := parseOwner(content)
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
		if name != filepath.Base(string(s)) {
			all = append(all, Store(filepath.Join(parent, name)))
		}
	})
	return all
}

// Lock makes the store if need be and waits for its lock, which lasts until the file is closed.
func (s Store) Lock(ctx context.Context) (*os.File, error) {
	return Lock(ctx, filepath.Join(string(s), "lock"))
}

// Lock makes the file and its directory if need be and waits for the file's lock, which lasts until it is
// closed.
func Lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// flock waits in a goroutine of its own where it cannot have the lock at once, because a signal does not end
// the system call; the goroutine dies with the process.
func flock(ctx context.Context, f *os.File) error {
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return nil
	}
	got := make(chan error, 1)
	go func() {
		err := error(syscall.EINTR)
		for errors.Is(err, syscall.EINTR) {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		got <- err
	}()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		return errors.New("stopped by a signal while another process held it")
	}
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
		if info, err := os.Lstat(o.file(a)); err == nil && info.Size() > 0 {
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
func (s Store) Has(o Owner, a netip.Addr) (bool, error) {
	content, err := os.ReadFile(s.file(a))
	return o.owns(content), Absent(err)
}

// release gives a back if o has it.
func (s Store) release(o Owner, a netip.Addr) error {
	has, err := s.Has(o, a)
	if has {
		err = Absent(os.Remove(s.file(a)))
	}
	return err
}

// each calls f with every reservation, in no order. It reads all the files, which ADD and DEL never do.
func (s Store) each(f func(a netip.Addr, content []byte)) error {
	all, err := s.addrs()
	errs := []error{err}
	for _, a := range all {
		content, err := os.ReadFile(s.file(a))
		if err == nil {
			f(a, content)
		}
		errs = append(errs, Absent(err))
	}
	return errors.Join(errs...)
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
	content, _ := os.ReadFile(s.lastFile(i))
	a, _ := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap()
}

// setLast writes over the old address and cuts off what is left of a longer one: file systems flush a file
// that was emptied first (ext4's auto_da_alloc), and an ADD would wait for the disk. Without the file the
// round only begins again at the start, so an error is no reason to refuse a pod.
func (s Store) setLast(i int, a netip.Addr) {
	f, err := os.OpenFile(s.lastFile(i), os.O_WRONLY|os.O_CREATE, 0o600)
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

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
