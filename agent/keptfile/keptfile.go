// Package keptfile keeps files as they were written: what somebody deletes, alters or replaces is put back at once.
package keptfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/filewatch"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/smallfile"
)

// A file is put back repairs times at once, and then once in repairPause: as often as what the agent has in the kernel.
// It is contended if it was put back duel times within duelTime.
const (
	repairs     = 30
	repairPause = time.Second / 3
	duel        = 10
	duelTime    = time.Minute
)

// Keeper keeps files. Make it with New. Without Run, files are put back by Write and Check only.
type Keeper struct {
	log    *slog.Logger
	causes *causes.Log
	events chan struct{} // something may have happened to a file

	mu    sync.Mutex
	files []*file

	watch *filewatch.Watch // of Run alone; nil: nothing is watched
}

// New returns a Keeper that logs what it puts back, and what it cannot.
func New(log *slog.Logger, c *causes.Log) *Keeper {
	return &Keeper{log: log, causes: c, events: make(chan struct{}, 1)}
}

// file is one that is kept.
type file struct {
	path string

	mu      sync.Mutex
	mode    fs.FileMode
	content func() ([]byte, error)
	asked   [sha256.Size]byte // of the content
	sum     [sha256.Size]byte // of the file when it was last in order
	size    int64             // likewise
	dir     fs.FileMode       // of the directory when the file was last there
	written *attributes       // as the file had them when it was written; nil: an earlier process wrote it
	limit   *rate.Limiter
	puts    []time.Time               // when it was put back, the last duel times
	oldest  atomic.Pointer[time.Time] // the first of them, when there are so many
	shared
}

// attributes are what is kept of a file beside its content.
type attributes struct {
	mode     fs.FileMode
	uid, gid uint32
}

// Write brings the file at path to content, and keeps it so from now on. Its mode is the given one, or what somebody
// reduced that to, as long as the owner may read the file. It makes no directory that was not there. An error is
// logged, and the file is tried again.
func (k *Keeper) Write(path string, mode fs.FileMode, content func() ([]byte, error)) error {
	return k.keep(path, mode, content, nil)
}

func (k *Keeper) keep(path string, mode fs.FileMode, content func() ([]byte, error), merge Merge) error {
	f := k.file(path)
	defer loop.Notify(k.events) // what is new is not watched yet, and a check may have left alone what is written
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := content()
	if err != nil {
		return err
	}
	if f.content == nil {
		f.mode = mode
	}
	asked := sha256.Sum256(data)
	known := f.content != nil && f.asked == asked
	f.content, f.merge, f.asked = content, merge, asked
	if !known {
		f.sum, f.size = asked, int64(len(data))
	}
	switch was := f.differs(); {
	case was == "":
	case known && f.unfinished(): // Run looks again
	case known:
		if err := k.putBack(f, was); !errors.Is(err, errOften) {
			return err
		}
	default:
		if err := f.write(f.merged(data)); err != nil {
			k.failed(f, err)
			return err
		}
	}
	return nil
}

// Check puts back what is not as it was written, and reports whether all files are so now. One that is being written
// is left alone.
func (k *Keeper) Check() bool {
	done := true
	for _, f := range k.list() {
		done = k.check(f) && done
	}
	return done
}

func (k *Keeper) check(f *file) bool {
	if !f.mu.TryLock() {
		return true
	}
	defer f.mu.Unlock()
	if f.content == nil {
		return true
	}
	was := f.differs()
	if was == "" {
		f.damaged = time.Time{}
		return true
	}
	return !f.unfinished() && k.putBack(f, was) == nil
}

// errOften is why a file waits.
var errOften = errors.New("it was put back too often")

func (k *Keeper) putBack(f *file, was string) error {
	if !f.limit.Allow() {
		return errOften
	}
	data, err := f.content()
	if err == nil {
		f.asked = sha256.Sum256(data)
		err = f.write(f.merged(data))
	}
	if err != nil {
		k.failed(f, err)
		return err
	}
	loop.Notify(k.events)
	if f.puts = append(f.puts, time.Now()); len(f.puts) > duel {
		f.puts = f.puts[1:]
	}
	if len(f.puts) == duel {
		oldest := f.puts[0]
		f.oldest.Store(&oldest)
	}
	if f.contended() {
		k.causes.Add(k.log, slog.LevelWarn, "another program keeps changing a file", f.path, "path", f.path)
	}
	if !k.causes.Add(k.log, slog.LevelInfo, "put a file back", f.path, "path", f.path, "was", was) {
		k.log.Debug("put a file back", "path", f.path, "was", was)
	}
	return nil
}

// Contended returns the paths of the files that another program keeps changing. It waits for no disk.
func (k *Keeper) Contended() (paths []string) {
	for _, f := range k.list() {
		if f.contended() {
			paths = append(paths, f.path)
		}
	}
	return paths
}

func (f *file) contended() bool {
	oldest := f.oldest.Load()
	return oldest != nil && time.Since(*oldest) < duelTime
}

// Lost returns an error if the directory of a file was deleted on the host while it is mounted here, as in a container:
// nothing can be made in it any more, and one that the host makes again is another. A new container has that one.
func (k *Keeper) Lost() error {
	var errs []error
	for _, f := range k.list() {
		var stat unix.Stat_t
		dir := filepath.Dir(f.path)
		if unix.Stat(dir, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR && stat.Nlink == 0 {
			errs = append(errs, fmt.Errorf("%s was deleted where it is mounted from: start a new container", dir))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) failed(f *file, err error) {
	k.causes.Add(k.log, slog.LevelError, "write a file", f.path, "path", f.path, "err", err)
}

func (k *Keeper) file(path string) *file {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.files {
		if f.path == path {
			return f
		}
	}
	f := &file{path: path, limit: rate.NewLimiter(rate.Every(repairPause), repairs)}
	k.files = append(k.files, f)
	return f
}

func (k *Keeper) list() []*file {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.files[:len(k.files):len(k.files)]
}

// write replaces the file with data, also where somebody put an empty directory in its place.
func (f *file) write(data []byte) error {
	dir := filepath.Dir(f.path)
	if f.dir != 0 {
		if err := os.MkdirAll(dir, f.dir); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(f.path); err == nil && info.IsDir() {
		if err := os.Remove(f.path); err != nil {
			return fmt.Errorf("a directory is in its place: %w", err)
		}
	}
	info, err := atomicfile.Replace(f.path, data, f.mode)
	if err != nil {
		return err
	}
	f.sum, f.size, f.written = sha256.Sum256(data), int64(len(data)), attributesOf(info)
	f.inOrder(data)
	return f.noteDir()
}

func (f *file) noteDir() error {
	info, err := os.Stat(filepath.Dir(f.path))
	if err == nil {
		f.dir = info.Mode().Perm()
	}
	return err
}

// differs returns what is wrong with the file, empty if it is as it was written.
func (f *file) differs() string {
	info, err := os.Lstat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "deleted"
	case err != nil:
		return err.Error()
	case info.IsDir():
		return "a directory"
	case !info.Mode().IsRegular():
		return "no regular file"
	}
	have, want := attributesOf(info), f.written
	if want == nil {
		want = &attributes{mode: f.mode, uid: uint32(os.Geteuid()), gid: have.gid}
	}
	switch {
	case have.uid != want.uid || have.gid != want.gid:
		return fmt.Sprintf("of user %d and group %d", have.uid, have.gid)
	case have.mode != want.mode && !stricter(have.mode, f.mode):
		return "of the mode " + have.mode.String()
	}
	if (info.Size() != f.size || !f.holds()) && !f.accepted() {
		return "altered"
	}
	if stricter(have.mode, f.mode) {
		f.mode, f.written = have.mode, have
	}
	if err := f.noteDir(); err != nil {
		return err.Error()
	}
	return ""
}

// stricter reports whether a mode allows less than another one, and its owner may still read.
func stricter(mode, than fs.FileMode) bool { return mode&^than == 0 && mode&0o400 != 0 }

func attributesOf(info fs.FileInfo) *attributes {
	a := &attributes{mode: info.Mode()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		a.uid, a.gid = s.Uid, s.Gid
	}
	return a
}

// holds reports whether the file holds what it did when it was last in order.
func (f *file) holds() bool {
	data, err := smallfile.ReadUnlinked(f.path, f.size)
	return err == nil && sha256.Sum256(data) == f.sum
}
