package keptfile

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/filewatch"
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
	retry, timer := loop.Backoff{First: firstRetry, Last: lastRetry}, time.NewTimer(0)
	defer timer.Stop()
	defer k.closeWatch()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.events:
			retry.Reset()
		case <-timer.C:
		}
		if err := k.follow(); err != nil {
			k.causes.Error(k.log, "watch files, which are checked once a minute only", err)
		}
		if !k.Check() {
			timer.Reset(retry.Next())
		}
		loop.Sleep(ctx, minPause) // a burst of events is one check
	}
}

// What is watched of a file, and of its directory. Of other files in the directory only that they come and go is
// noticed.
const (
	fileMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_DONT_FOLLOW
	dirMask  = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
		unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// follow watches all files, and their directories, that now have their paths.
func (k *Keeper) follow() (err error) {
	if k.watch == nil {
		if k.watch, err = filewatch.Open(k.events); err != nil {
			return err
		}
	}
	want, names := filewatch.Paths{}, []string(nil)
	for _, f := range k.list() {
		want[f.path], want[filepath.Dir(f.path)] = fileMask, dirMask
		names = append(names, filepath.Base(f.path))
	}
	return errors.Join(k.watch.Err(), k.watch.Follow(want, names...))
}

func (k *Keeper) closeWatch() {
	if k.watch != nil {
		k.watch.Close()
		k.watch = nil
	}
}
