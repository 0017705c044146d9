package ruletrace

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ownSpace is the network namespace of the calling thread.
const ownSpace = "/proc/thread-self/ns/net"

// space is a network namespace.
type space struct{ file *os.File }

func openSpace() (*space, error) {
	f, err := os.Open(ownSpace)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &space{f}, nil
}

func (s *space) close() { s.file.Close() }

// do calls fn on a thread that is in the namespace. Processes that fn starts are there too.
func (s *space) do(fn func() error) error {
	runtime.LockOSThread()
	if s.current() {
		defer runtime.UnlockOSThread()
		return fn()
	}
	runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its goroutine
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// current reports whether the calling thread is in the namespace.
func (s *space) current() bool {
	mine, err := os.Stat(ownSpace)
	if err != nil {
		return false
	}
	other, err := s.file.Stat()
	return err == nil && os.SameFile(mine, other)
}
