package filewatch

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// inVolume is what is watched of a config file's directory: files come and go, or are written. A ConfigMap's volume changes by
// a rename.
const inVolume = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR

// Config calls changed whenever a config file may have changed since it was called, and after the time that every returns, until
// ctx is done. It calls failed with the reason while the file cannot be watched: then changed is called by time alone.
func Config(ctx context.Context, path string, every func() time.Duration, failed func(error), changed func()) {
	events := make(chan struct{}, 1)
	w, err := Open(events)
	if err == nil {
		defer w.Close()
	}
	for {
		if w != nil {
			err = errors.Join(w.Err(), w.Follow(Paths{filepath.Dir(path): inVolume}))
		}
		if err != nil {
			failed(err)
		}
		changed() // the first time for what happened before it was watched
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-time.After(every()):
		}
	}
}
