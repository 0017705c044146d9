package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// draftName is what newDraft, and the agent, call a file that is being written: .twill- and a number.
var draftName = regexp.MustCompile(`^\.twill-[0-9]+$`)

// draftAge is after what time a draft that nobody holds is one of a process that was killed.
const draftAge = 10 * time.Minute

// newDraft makes a file that is renamed when it is whole. It is locked while it is written.
func newDraft(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".twill-*")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// sweepDrafts removes what killed processes left in a directory: old regular files of a draft's name that nobody holds.
func sweepDrafts(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if draftName.MatchString(e.Name()) && e.Type().IsRegular() {
			errs = append(errs, sweepDraft(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func sweepDraft(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < draftAge {
		return err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	return os.Remove(path)
}

// writable returns an error that says what to do where this process may not make files in dir.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); !errors.Is(err, unix.EACCES) {
		return nil // another error is told by what is done there
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return fmt.Errorf("%s belongs to user %d and has the mode %#o, so user %d may not write there: "+
		"give the container the capability DAC_OVERRIDE, or the directory to that user (chown %d %s)",
		dir, stat.Uid, stat.Mode&0o7777, os.Getuid(), os.Getuid(), dir)
}
