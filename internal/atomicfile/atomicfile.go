// Package atomicfile replaces files in one step: a reader sees the whole old file or the whole new
// one, also after a power loss.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// Write replaces the file at path. The new content is written beside it, into a file that is locked
// meanwhile, and renamed: a program that somebody has open cannot be written to, and containerd
// does not see a file that comes from another directory.
func Write(path string, data []byte, mode fs.FileMode) error {
	_, err := Replace(path, data, mode)
	return err
}

// Replace is Write, and returns what the file was when nobody else could have altered it.
func Replace(path string, data []byte, mode fs.FileMode) (fs.FileInfo, error) {
	f, err := create(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode))
	info, statErr := f.Stat()
	// Closed before it has its name: a program that is open for writing cannot be started.
	if err = errors.Join(err, statErr, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return info, errors.Join(d.Sync(), d.Close())
}

// temporary is what create calls a file: .twill- and a number.
var temporary = regexp.MustCompile(`^\.twill-[0-9]+$`)

// abandonedAfter is the age from which a temporary file that nobody has locked is one of a process
// that was killed.
const abandonedAfter = 10 * time.Minute

func create(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".twill-*")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// Sweep removes the temporary files that killed processes left in a directory.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if temporary.MatchString(e.Name()) && e.Type().IsRegular() {
			errs = append(errs, sweep(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func sweep(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < abandonedAfter {
		return err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	return os.Remove(path)
}
