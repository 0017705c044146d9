// Package droplog writes a log beside those who log. Whoever reads the log may be slow, stopped or gone; nobody waits
// for that, and what there is no room for is lost and counted.
package droplog

import (
	"bytes"
	"io"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/loop"
)

// room is how much may wait for the reader, in bytes.
const room = 1 << 20

// Writer is a writer to which writing never waits and never fails. Several goroutines may use it.
type Writer struct {
	to    io.Writer
	wake  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	waiting [][]byte
	size    int // of waiting, in bytes
	lost    int // lines, since the last that was written
	report  func(w io.Writer, lost int)
	closed  bool
}

// New returns a Writer that writes to another one, from a goroutine of its own, until Close.
func New(to io.Writer) *Writer {
	w := &Writer{to: to, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Report makes f write the line that says how many lines were lost, where they would be.
func (w *Writer) Report(f func(w io.Writer, lost int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = f
}

// Write takes a copy of p, or loses it. It never returns an error.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.size+len(p) > room {
		w.lost++
		return len(p), nil
	}
	w.tell()
	w.add(bytes.Clone(p))
	return len(p), nil
}

// tell adds the line about those that were lost.
func (w *Writer) tell() {
	if w.lost == 0 || w.report == nil {
		return
	}
	var line bytes.Buffer
	w.report(&line, w.lost)
	w.lost = 0
	w.add(line.Bytes())
}

func (w *Writer) add(line []byte) {
	w.waiting, w.size = append(w.waiting, line), w.size+len(line)
	loop.Notify(w.wake)
}

// Close waits until all is written, for limit at most. What is written afterwards is lost.
func (w *Writer) Close(limit time.Duration) {
	w.mu.Lock()
	w.tell()
	w.closed = true
	w.mu.Unlock()
	close(w.wake)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.ended:
	case <-timer.C:
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	for open := true; open; {
		_, open = <-w.wake
		for line := w.next(); line != nil; line = w.next() {
			if _, err := w.to.Write(line); err != nil {
				w.mu.Lock()
				w.lost++
				w.mu.Unlock()
			}
		}
	}
}

// next takes the oldest line, nil if there is none.
func (w *Writer) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		w.waiting = nil
		return nil
	}
	line := w.waiting[0]
	w.waiting, w.size = w.waiting[1:], w.size-len(line)
	return line
}
