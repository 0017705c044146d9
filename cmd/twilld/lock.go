package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
)

// lockTimeout is how long a new agent waits for the one that it replaces.
const lockTimeout = 5 * time.Second

// lockFile makes sure that one agent writes the subnet file. It also finds out early whether it can be written.
func lockFile(ctx context.Context, subnetFile string, timeout time.Duration) (unlock func(), err error) {
	dir := filepath.Dir(subnetFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".twilld.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
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

// lockHost makes sure that one agent works in this network namespace: two would take each other's devices and routes, which
// carry the same mark, for leftovers of their own. A holder of the lock that is not root's, or does not answer, is no agent
// and keeps nobody from starting. Meanwhile the holder answers agent.AskSettings.
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
		return nil, fmt.Errorf("another twilld in this network namespace writes %q, and two would undo each other's work: "+
			"one network of Twill on a host, or one of Twill beside one of flannel", other.SubnetFile)
	}
	return func() {}, nil
}
