// Package filewatch tells at once that files may have changed (inotify(7)).
package filewatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
)

// Paths are what is watched: files and directories, each with what the kernel tells of it (unix.IN_…).
type Paths map[string]uint32

// Watch is an inotify instance.
type Watch struct {
	inotify *os.File
	ended   chan struct{}
	err     error // why no more events come; to be read once ended is closed

	mu    sync.Mutex
	paths Paths // what is watched, and its watch descriptor
	names []string
}

// Open returns a Watch that leaves a notice in events for whatever may be about a file that it follows.
func Open(events chan<- struct{}) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watch{inotify: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{}), paths: Paths{}}
	go func() {
		defer close(w.ended)
		w.err = w.read(events)
	}()
	return w, nil
}

// Follow watches what now has the paths. What is missing is not watched, and no error. Of files in a directory that have
// none of the names nothing is told; without names, all count.
func (w *Watch) Follow(want Paths, names ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names = names
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	err = raw.Control(func(fd uintptr) {
		old := maps.Clone(w.paths)
		clear(w.paths)
		for path, mask := range want {
			wd, err := unix.InotifyAddWatch(int(fd), path, mask)
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

// Close ends the watch, and returns once what came before is told.
func (w *Watch) Close() {
	w.inotify.Close()
	<-w.ended
}

// Err returns why nothing is told any more, nil if it is, or if the watch was closed.
func (w *Watch) Err() error {
	select {
	case <-w.ended:
		return w.err
	default:
		return nil
	}
}

// read leaves notices until the inotify instance is closed.
func (w *Watch) read(events chan<- struct{}) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.inotify.Read(buffer)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		if w.concerns(buffer[:n]) {
			loop.Notify(events)
		}
	}
}

// concerns reports whether one of the events is about what is followed.
func (w *Watch) concerns(events []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		name, rest := events[unix.SizeofInotifyEvent:][:size], events[unix.SizeofInotifyEvent+size:]
		name, _, _ = bytes.Cut(name, []byte{0})
		about := len(name) == 0 || len(w.names) == 0 || slices.Contains(w.names, string(name))
		if about && mask&unix.IN_IGNORED == 0 { // which says that something is no longer watched
			return true
		}
		events = rest
	}
	return false
}
