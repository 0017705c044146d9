package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/smallfile"
)

// malformedError is the error for a file that somebody has to mend.
type malformedError struct {
	path string
	err  error
}

func (e malformedError) Error() string { return fmt.Sprintf("read %s: %v", e.path, e.err) }
func (e malformedError) Unwrap() error { return e.err }

// mostLeases bounds what is read of the file, in bytes.
const mostLeases = 64 * smallfile.MB

// version tells one content of the file from another without reading it. The zero version is no file.
type version struct {
	inode uint64
	size  int64
	mtime time.Time
}

// settled reports whether a later write would certainly change v: file systems give two writes of the same clock tick
// (4 ms and more) the same mtime, and a freed inode number to the next file.
func (v version) settled() bool { return time.Since(v.mtime) > time.Second }

func (s *Store) stat() (version, error) {
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return version{}, nil
	}
	if err != nil {
		return version{}, fmt.Errorf("look at leases: %w", err)
	}
	return version{inode: info.Sys().(*syscall.Stat_t).Ino, size: info.Size(), mtime: info.ModTime()}, nil
}

func (s *Store) read() (document, error) {
	data, err := smallfile.Read(s.path, mostLeases)
	if errors.Is(err, fs.ErrNotExist) {
		return document{}, nil
	}
	if err != nil {
		return document{}, fmt.Errorf("read leases: %w", err)
	}
	doc, err := parse(data)
	if err != nil {
		return document{}, malformedError{s.path, err}
	}
	return doc, nil
}

// update changes the file under the lock, if change returns true.
func (s *Store) update(ctx context.Context, change func(*document) (bool, error)) error {
	unlock, err := lock(ctx, s.path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	doc, err := s.read()
	if err != nil {
		return err
	}
	changed, err := change(&doc)
	if err != nil || !changed {
		return err
	}
	data, err := doc.format()
	if err != nil {
		return fmt.Errorf("encode leases: %w", err)
	}
	if err := atomicfile.Write(s.path, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", s.path, err)
	}
	return nil
}

// lock takes the flock on path. It polls, because a flock that blocks does not end with ctx.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock leases: %w", err)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which gives the lock back
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		loop.Sleep(ctx, 5*time.Millisecond)
	}
}
