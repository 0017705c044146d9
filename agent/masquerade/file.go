package masquerade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/loop"
)

// File is a config file that is followed. The methods of a nil File are those of one that says nothing.
type File struct {
	path    string
	check   func(exempt []netip.Prefix) error
	event   func(kind, reason, message string) // nil: there is nobody to tell
	log     *slog.Logger
	causes  causes.Log
	current atomic.Pointer[Config]
	failed  string // the error of the last read
}

// Open reads the file at path. What check refuses is an error. Event, if it is not nil, tells the cluster of errors.
func Open(path string, check func([]netip.Prefix) error, log *slog.Logger,
	event func(kind, reason, message string)) (*File, error) {
	f := &File{path: path, check: check, log: log, event: event}
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	f.use(c)
	return f, nil
}

// Exempt returns the networks that the file exempts now. The caller does not write to them.
func (f *File) Exempt() []netip.Prefix {
	if f == nil {
		return nil
	}
	return f.current.Load().Exempt
}

func (f *File) read() (Config, error) {
	c, err := Read(f.path)
	if err == nil {
		if err = f.check(c.Exempt); err != nil {
			err = fmt.Errorf("ip-masq-agent's config %s: %w", f.path, err)
		}
	}
	return c, err
}

func (f *File) use(c Config) {
	for _, w := range c.Warnings {
		f.log.Warn("ip-masq-agent's config", "path", f.path, "reason", w)
	}
	f.current.Store(&c)
}

// Run reads the file again when it changes, and as often as it says, until ctx is done. It calls changed when other
// networks are exempt. After an error, the networks stay as they are.
func (f *File) Run(ctx context.Context, changed func()) error {
	if f == nil {
		return nil
	}
	w, err := newWatch(filepath.Dir(f.path))
	if err != nil {
		f.causes.Error(f.log, "watch ip-masq-agent's config, which is read at its resyncInterval only", err)
		w = &watch{}
	}
	defer w.close()
	for {
		w.follow()
		timer := time.NewTimer(f.current.Load().Resync)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-w.events:
		case <-timer.C:
		}
		timer.Stop()
		if f.reload() {
			changed()
		}
	}
}

// reload reports whether other networks are exempt now.
func (f *File) reload() bool {
	c, err := f.read()
	if err != nil {
		f.causes.Error(f.log, "read ip-masq-agent's config, the last good one stays in force", err)
		if f.event != nil && f.failed != err.Error() {
			f.event("Warning", "MasqueradeConfigInvalid", err.Error())
		}
		f.failed = err.Error()
		return false
	}
	f.failed = ""
	old := f.current.Load()
	if slices.Equal(old.Exempt, c.Exempt) && old.Resync == c.Resync && slices.Equal(old.Warnings, c.Warnings) {
		return false
	}
	f.use(c)
	f.log.Info("ip-masq-agent's config changed", "path", f.path, "exempt", c.Exempt)
	return !slices.Equal(old.Exempt, c.Exempt)
}

// watch notices that files come and go in a directory, or are written. A ConfigMap's volume changes by a rename.
type watch struct {
	dir     string
	inotify *os.File
	events  chan struct{}
	ended   chan struct{}
}

const watchMask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR

func newWatch(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &watch{dir: dir, inotify: os.NewFile(uintptr(fd), "inotify"), events: make(chan struct{}, 1),
		ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		buffer := make([]byte, 4<<10)
		for {
			if _, err := w.inotify.Read(buffer); errors.Is(err, os.ErrClosed) {
				return
			} else if err != nil {
				continue // a long name: it was an event all the same
			}
			loop.Notify(w.events)
		}
	}()
	return w, nil
}

// follow watches the directory that now has the name. One that is missing is not watched.
func (w *watch) follow() {
	if w.inotify == nil {
		return
	}
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = unix.InotifyAddWatch(int(fd), w.dir, watchMask) // what it cannot watch is read at the resyncInterval
	})
}

func (w *watch) close() {
	if w.inotify == nil {
		return
	}
	w.inotify.Close()
	<-w.ended
}
