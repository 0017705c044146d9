package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// store is one network's reservations on disk, in the format of host-local: one file for each address, named
// after it, with the container id, CR LF and the interface's name in it; last_reserved_ip.<range index>; and
// lock, on which whoever changes something holds a flock. The directory indexDir in it is our own.
type store struct {
	dir    string
	lock   *os.File // nil: not locked, reading only
	others []string // stores of other networks in which an address may be reserved
}

// owner is who holds a reservation.
type owner struct{ container, dev string }

func (o owner) String() string { return strings.TrimSpace(o.container) + "\r\n" + o.dev }

func parseOwner(content []byte) owner {
	container, dev, _ := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
	return owner{container, dev}
}

// owns says whether a file with that content is o's; host-local once wrote the container id only.
func (o owner) owns(content []byte) bool {
	in := parseOwner(content)
	return in.container == strings.TrimSpace(o.container) && (in.dev == o.dev || in.dev == "")
}

// lockStore makes dir if need be and waits for its lock.
func lockStore(ctx context.Context, dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := lockFile(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	return &store{dir: dir, lock: f, others: Neighbours(dir)}, nil
}

// Neighbours returns the stores of the other networks beside the store at dir. flannel's chain keeps its reservations under
// the name in flannel's conflist, which is not cbr0 everywhere: after a migration pods have addresses of this node's lease
// that are reserved in another store.
func Neighbours(dir string) []string {
	var all []string
	_ = entries(filepath.Dir(dir), func(_ uint64, name string) {
		if name != "." && name != ".." && name != filepath.Base(dir) {
			all = append(all, filepath.Join(filepath.Dir(dir), name))
		}
	})
	return all
}

// lockFile makes the file if need be and waits for its lock, which lasts until the file is closed.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|syscall.O_CLOEXEC, 0o600)
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
// the system call; the waiter dies with the process.
func flock(ctx context.Context, f *os.File) error {
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return nil
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
			if !errors.Is(err, syscall.EINTR) {
				got <- err
				return
			}
		}
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

// close gives the lock back.
func (s *store) close() { _ = s.lock.Close() }

func (s *store) path(a netip.Addr) string { return filepath.Join(s.dir, a.String()) }

// reserve takes a for the owner in draft and reports whether it was free, here and in the other networks. The file
// appears with its content or not at all, because it is a new name for a whole one. An empty file is what host-local
// leaves when it dies between creating and writing (and what a power loss can leave of any young file); under the lock
// nobody is about to write it, so it is free.
func (s *store) reserve(draft string, a netip.Addr) (bool, error) {
	err := os.Link(draft, s.path(a))
	if errors.Is(err, fs.ErrExist) && s.reclaim(a) {
		err = os.Link(draft, s.path(a))
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	// Afterwards: other networks have locks of their own, and of two that take a at once neither would see the other's.
	if err == nil && s.elsewhere(a) {
		return false, os.Remove(s.path(a))
	}
	return err == nil, err
}

// elsewhere reports whether another network has a.
func (s *store) elsewhere(a netip.Addr) bool {
	return slices.ContainsFunc(s.others, func(dir string) bool {
		info, err := os.Lstat(filepath.Join(dir, a.String()))
		return err == nil && info.Size() > 0
	})
}

func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// reclaim removes the file of a if it is an empty one, and says whether it did.
func (s *store) reclaim(a netip.Addr) bool {
	info, err := os.Lstat(s.path(a))
	return err == nil && info.Mode().IsRegular() && info.Size() == 0 && os.Remove(s.path(a)) == nil
}

// last is the address that was reserved last from range set i, invalid if that is not known.
func (s *store) last(i int) netip.Addr {
	content, err := os.ReadFile(s.lastPath(i))
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap()
}

// setLast writes over the old address and cuts off what is left of a longer one: file systems flush a file that was
// emptied first (ext4's auto_da_alloc), and an ADD would wait for the disk.
func (s *store) setLast(i int, a netip.Addr) error {
	f, err := os.OpenFile(s.lastPath(i), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	n, err := f.WriteString(a.String())
	if info, e := f.Stat(); err == nil && e == nil && info.Size() > int64(n) {
		err = f.Truncate(int64(n))
	}
	return errors.Join(err, f.Close())
}

func (s *store) lastPath(i int) string {
	return filepath.Join(s.dir, "last_reserved_ip."+strconv.Itoa(i))
}

// release gives a back if o has it, and says whether it had.
func (s *store) release(o owner, a netip.Addr) (bool, error) {
	content, err := os.ReadFile(s.path(a))
	if err != nil || !o.owns(content) {
		return false, absent(err)
	}
	err = absent(os.Remove(s.path(a)))
	return err == nil, err
}

// each calls f with every reservation, in no order; content is only good until f returns. It reads all the files,
// which ADD and DEL never do.
func (s *store) each(f func(a netip.Addr, content []byte)) error {
	var all []netip.Addr
	err := entries(s.dir, func(_ uint64, name string) {
		if a, err := netip.ParseAddr(name); err == nil {
			all = append(all, a)
		}
	})
	return errors.Join(err, s.read(all, f))
}

// read calls f with those reservations, with the fewest system calls.
func (s *store) read(all []netip.Addr, f func(a netip.Addr, content []byte)) error {
	if len(all) == 0 {
		return nil
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return absent(err)
	}
	defer dir.Close()
	var errs []error
	buf := make([]byte, 4096)
	for _, a := range all {
		n, err := readAt(int(dir.Fd()), a.String(), buf)
		if err != nil {
			errs = append(errs, absent(fmt.Errorf("read %s: %w", s.path(a), err)))
			continue
		}
		f(a, buf[:n])
	}
	return errors.Join(errs...)
}

// readAt reads the beginning of a file of the directory dir.
func readAt(dir int, name string, buf []byte) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.Read(fd, buf)
}

// absent is err, unless it only says that something is not there.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
