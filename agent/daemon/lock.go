package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
)

// lockTimeout is how long a new agent waits for the one that it replaces.
const lockTimeout = 5 * time.Second

// lockName is the file beside the subnet file that is locked.
const lockName = ".twilld.lock"

// lockFile makes sure that only one agent writes the subnet file.
func lockFile(ctx context.Context, subnetFile string, timeout time.Duration) (unlock func(), err error) {
	dir := filepath.Dir(subnetFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	path := filepath.Join(dir, lockName)
	// Without writing: a disk that takes nothing must not stop an agent that repairs the kernel. A pipe would be waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	tick := time.NewTicker(timeout / 50)
	defer tick.Stop()
	for end := time.Now().Add(timeout); ; {
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
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// lockHost makes sure that only one agent works in this network namespace. Two would delete each
// other's devices and routes, which carry the same mark, as leftovers. The lock is
// agent.SettingsSocket. If its holder is not root's or does not answer, it is no agent, and
// lockHost succeeds without the lock.
func lockHost(ctx context.Context, s agent.Settings, timeout time.Duration) (unlock func(), err error) {
	tick := time.NewTicker(timeout / 50)
	defer tick.Stop()
	for end := time.Now().Add(timeout); ; {
		l, err := net.Listen("unix", agent.SettingsSocket)
		if err == nil {
			go s.Serve(l)
			return func() { l.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("lock this network namespace: %w", err)
		}
		if time.Now().After(end) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
	if other, _, err := agent.AskSettings(); err == nil {
		return nil, fmt.Errorf("another twilld in this network namespace writes %q, "+
			"and two would undo each other's work: one network of Twill on a host, or one of Twill beside one of flannel",
			other.SubnetFile)
	}
	return func() {}, nil
}
