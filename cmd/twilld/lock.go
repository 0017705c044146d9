package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long a new agent waits for the one that it replaces.
const lockPatience = 5 * time.Second

// lock makes sure that one agent writes the subnet file. It also finds out early whether it can be written.
func lock(subnetFile string) (unlock func(), err error) {
	dir := filepath.Dir(subnetFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".twilld.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	for end := time.Now().Add(lockPatience); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { f.Close() }, nil
		case errors.Is(err, unix.EINTR):
			continue
		case time.Now().After(end):
			f.Close()
			return nil, fmt.Errorf("another twilld on this node writes %s: stop it first", subnetFile)
		}
		<-time.After(lockPatience / 50)
	}
}
