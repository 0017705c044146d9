package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// LockTimeout is how long a lock of reservations is waited for, a variable for tests. Whoever has it is done in
// milliseconds, and runtimes give up after two to four minutes, without a word about what was waited for.
var LockTimeout = 30 * time.Second

// Lock makes the store if need be and waits for its lock, which lasts until the file is closed. The error has the code
// with which runtimes try again.
func (s Store) Lock(ctx context.Context) (*os.File, error) {
	path := filepath.Join(string(s), "lock")
	limited, cancel := context.WithTimeout(ctx, LockTimeout)
	defer cancel()
	f, err := Lock(limited, path)
	switch {
	case err == nil:
		return f, nil
	case ctx.Err() == nil && limited.Err() != nil:
		return nil, cnierr.New(types.ErrTryAgainLater, "%s was not released for %s by %s: if that hangs, end it",
			path, LockTimeout, Holder(path))
	}
	return nil, cnierr.New(types.ErrIOFailure, "%v", err)
}

// Lock makes the file and its directory if need be and waits for the file's lock, which lasts until it is
// closed.
func Lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o600) // a pipe would be waited for
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// flock waits in a goroutine of its own where it cannot have the lock at once, because a signal does not end
// the system call. If ctx is done before, the goroutine goes on waiting, and closes the file then, or dies with the
// process: a file that is closed while somebody waits for it may be another one by the time.
func flock(ctx context.Context, f *os.File) error {
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return nil
	}
	got, given := make(chan error), make(chan struct{})
	go func() {
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		select {
		case got <- err:
		case <-given:
			f.Close()
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		close(given)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		return errors.New("stopped by a signal while another process held it")
	}
}

// Holder returns the process that has the lock of a file, as text: of this PID namespace, or else another.
func Holder(path string) string {
	var stat unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(path, &stat) != nil {
		return "another process"
	}
	return holder(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino))
}

// holder finds the lock of a file in lines like "1: FLOCK  ADVISORY  WRITE 4711 08:01:131076 0 EOF".
func holder(locks, file string) string {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file { // "->" in its place is one that waits
			continue
		}
		name, err := os.ReadFile("/proc/" + f[4] + "/comm")
		if err != nil {
			return "another process, which inherited it of process " + f[4]
		}
		return "process " + f[4] + " (" + strings.TrimSpace(string(name)) + ")"
	}
	return "another process"
}
