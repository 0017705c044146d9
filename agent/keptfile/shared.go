package keptfile

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"time"

	"github.com/twill-net/twill/internal/smallfile"
)

// Merge returns what a file that others write to as well should hold: content, and what others added to have, which is
// what the file holds. A file that holds what Merge returns for it is in order. It reports false if nothing can be taken
// from have.
type Merge func(content, have []byte) (want []byte, ok bool)

// settle is how long a file that others write to may be missing or unreadable before it is put back: some of them
// truncate it, or delete it, and then write.
const settle = time.Second / 2

// mostShared bounds what is read of a file that others write to, in bytes.
const mostShared = 1 << 20

// shared is what is known of a file that others write to.
type shared struct {
	merge   Merge     // nil: nobody else does
	last    []byte    // what it held when it was last in order
	damaged time.Time // since when it has been missing or unreadable; zero: it is not
}

// Share brings content into the file at path, and keeps it there as Write does, but leaves what others add. A file that
// is gone, or of which nothing can be taken, gets back what it held when it was last in order.
func (k *Keeper) Share(path string, mode fs.FileMode, content func() ([]byte, error), merge Merge) error {
	return k.keep(path, mode, content, merge)
}

// merged returns what the file should hold now.
func (f *file) merged(content []byte) []byte {
	if f.merge == nil {
		return content
	}
	for _, have := range [][]byte{f.read(), f.last} {
		if want, ok := f.merge(content, have); ok {
			return want
		}
	}
	return content
}

// accepted reports whether others altered the file in a way that leaves it in order.
func (f *file) accepted() bool {
	if f.merge == nil {
		return false
	}
	content, err := f.content()
	have := f.read()
	if err != nil {
		return false
	}
	want, ok := f.merge(content, have)
	if !ok || !bytes.Equal(want, have) {
		return false
	}
	f.sum, f.size = sha256.Sum256(have), int64(len(have))
	f.inOrder(have)
	return true
}

// inOrder notes what a file holds that is in order.
func (f *file) inOrder(data []byte) {
	if f.merge != nil {
		f.last, f.damaged = data, time.Time{}
	}
}

// unfinished reports whether somebody may be about to write the file: it is missing or unreadable, and has not been for
// long.
func (f *file) unfinished() bool {
	if f.merge == nil {
		return false
	}
	content, err := f.content()
	if err != nil {
		return false
	}
	if _, ok := f.merge(content, f.read()); ok {
		return false
	}
	if f.damaged.IsZero() {
		f.damaged = time.Now()
	}
	return time.Since(f.damaged) < settle
}

// read returns what the file holds, nil if it cannot be read.
func (f *file) read() []byte {
	data, err := smallfile.ReadUnlinked(f.path, mostShared)
	if err != nil {
		return nil
	}
	return data
}
