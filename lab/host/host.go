// Package host makes named network namespaces and uses each as a machine of its own: it starts processes in
// them, and pings and sends data from inside them with this process's own code, so that no other program is
// needed. A socket belongs to the namespace in which it was opened, whatever thread uses it afterwards.
package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Host is a named network namespace.
type Host struct{ Name string }

// Path is the file that the namespace is mounted on.
func (h Host) Path() string { return filepath.Join(Dir, h.Name) }

// Do runs fn on a thread that is inside the namespace. What fn opens and starts stays there.
func (h Host) Do(fn func() error) error {
	ns, err := h.open()
	if err != nil {
		return err
	}
	defer ns.Close()
	return inThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter namespace %s: %w", h.Name, err)
		}
		return fn()
	})
}

// Links calls fn with a netlink handle that works in the namespace and ends with the call.
func (h Host) Links(fn func(*netlink.Handle) error) error {
	ns, err := h.open()
	if err != nil {
		return err
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", h.Name, err)
	}
	defer nl.Close()
	return fn(nl)
}

// SetSysctl writes a kernel parameter of the namespace, named with slashes: net/ipv4/ip_forward.
func (h Host) SetSysctl(name, value string) error {
	return h.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
	})
}

// inThread runs fn on a thread of its own, brings the thread back to its namespace, and hands it back only
// then. Letting the thread end instead is not enough: the main thread never ends, and would keep the namespace.
func inThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open this thread's namespace: %w", err)
			return
		}
		defer home.Close()
		err = fn()
		if back := netns.Set(home); back != nil {
			done <- errors.Join(err, fmt.Errorf("leave the namespace: %w", back))
			return // locked: the thread ends with this goroutine
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}
