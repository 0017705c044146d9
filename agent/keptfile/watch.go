package keptfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
)

// What cannot be put back is tried again after firstRetry, and after twice the time each time, up to lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
	minPause   = 10 * time.Millisecond // the least time between two checks
)

// Run puts files back at the moment that they are altered, until ctx is done. Where the kernel cannot watch them, that
// is logged, and it takes the next Write or Check.
func (k *Keeper) Run(ctx context.Context) error {
	wait, timer := firstRetry, time.NewTimer(0)
	defer timer.Stop()
	defer k.closeWatch()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.events:
			wait = firstRetry
		case <-timer.C:
			wait = min(2*wait, lastRetry)
		}
		if err := k.follow(); err != nil {
			k.causes.Error(k.log, "watch files, which are checked once a minute only", err)
		}
		if !k.Check() {
			timer.Reset(wait)
		}
		select { // a burst of events is one check
		case <-ctx.Done():
		case <-time.After(minPause):
		}
	}
}

// watch is an inotify instance.
type watch struct {
	inotify *os.File
	ended   chan struct{}

	mu    sync.Mutex
	paths map[string]uint32 // what is watched, and its watch descriptor
	names map[string]bool   // of the files that are kept
}

// What is watched of a file, and of its directory. Of other files in the directory only that they come and go is
// noticed.
const (
	fileMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_DONT_FOLLOW
	dirMask  = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
		unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// follow watches all files, and their directories, that now have their paths.
func (k *Keeper) follow() error {
	if k.watch == nil {
		w, err := k.openWatch()
		if err != nil {
			return err
		}
		k.watch = w
	}
	want := map[string]uint32{}
	for _, f := range k.list() {
		want[f.path], want[filepath.Dir(f.path)] = fileMask, dirMask
	}
	return k.watch.follow(want)
}

// follow watches the paths of want, with its masks. What is missing is not watched, only its directory.
func (w *watch) follow(want map[string]uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path := range want {
		w.names[filepath.Base(path)] = true
	}
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	err = raw.Control(func(fd uintptr) {
		old := maps.Clone(w.paths)
		for path, mask := range want {
			wd, err := unix.InotifyAddWatch(int(fd), path, mask)
			delete(w.paths, path)
			switch {
			case err == nil:
				w.paths[path] = uint32(wd)
			case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
		used := slices.Collect(maps.Values(w.paths))
		for _, wd := range old {
			if !slices.Contains(used, wd) {
				_, _ = unix.InotifyRmWatch(int(fd), wd) // the kernel did, if the file is gone and not just elsewhere
			}
		}
	})
	return errors.Join(append(errs, err)...)
}

func (k *Keeper) openWatch() (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &watch{inotify: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{}),
		paths: map[string]uint32{}, names: map[string]bool{}}
	go func() {
		defer close(w.ended)
		if err := w.read(k.events); !errors.Is(err, os.ErrClosed) {
			k.causes.Add(k.log, slog.LevelError, "watch files", "", "err", err)
		}
	}()
	return w, nil
}

func (k *Keeper) closeWatch() {
	if k.watch == nil {
		return
	}
	k.watch.inotify.Close()
	<-k.watch.ended
	k.watch = nil
}

// read notifies of everything that may be about a file that is kept, until the inotify instance is closed.
func (w *watch) read(events chan<- struct{}) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			return err
		}
		if w.concerns(buffer[:n]) {
			loop.Notify(events)
		}
	}
}

// concerns reports whether one of the events is about a file that is kept, or a directory of one.
func (w *watch) concerns(events []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		size := binary.NativeEndian.Uint32(events[12:])
		name, rest := events[unix.SizeofInotifyEvent:][:size], events[unix.SizeofInotifyEvent+size:]
		name, _, _ = bytes.Cut(name, []byte{0})
		if len(name) == 0 || w.names[string(name)] {
			return true
		}
		events = rest
	}
	return false
}
