package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// placement is where threads that ask and answer run.
type placement struct{ pinned bool }

// hold keeps the goroutine on its thread and, if pinned, the thread on the first processor that it may run on. Release
// undoes both.
func (p placement) hold() (release func(), err error) {
	runtime.LockOSThread()
	if !p.pinned {
		return runtime.UnlockOSThread, nil
	}
	var all, one unix.CPUSet
	if err = unix.SchedGetaffinity(0, &all); err == nil {
		for i := range len(all) * 64 {
			if all.IsSet(i) {
				one.Set(i)
				break
			}
		}
		err = unix.SchedSetaffinity(0, &one)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("keep a thread on one processor: %w", err)
	}
	return func() {
		if unix.SchedSetaffinity(0, &all) == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}, nil
}
