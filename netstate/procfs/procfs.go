// Package procfs reads small files of /proc as often as somebody looks at them: every few seconds, for as long as an agent
// lives.
package procfs

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Read returns a file of less than 512 bytes, without the white space around it. It does without package os, which
// registers each file with the poller: that is five more system calls, and wakes a thread.
func Read(path string) (string, error) {
	var value [512]byte
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	n, err := unix.Read(fd, value[:])
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return "", err
	}
	return strings.TrimSpace(string(value[:n])), nil
}

// UntilNext returns the time until the clock shows a multiple of interval. Who looks every three seconds and who looks
// every six wake the processor together.
func UntilNext(interval time.Duration) time.Duration {
	now := time.Now()
	return now.Truncate(interval).Add(interval).Sub(now)
}
