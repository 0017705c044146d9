// Package host makes named network namespaces and uses each as a machine of its own: it starts processes in
// them, and pings and sends data from inside them with this process's own code, so that no other program is
// needed. A socket belongs to the namespace in which it was opened, whatever thread uses it afterwards.
package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Host is a named network namespace.
type Host struct{ Name string }

// Path is the file that the namespace is mounted on.
func (h Host) Path() string { return filepath.Join(Dir, h.Name) }

// Do runs fn on a thread that is inside the namespace. What fn opens and starts stays there.
func (h Host) Do(fn func() error) error {
	space, err := ns.GetNS(h.Path())
	if errors.As(err, &ns.NSPathNotNSErr{}) {
		err = fmt.Errorf("%s is no network namespace: its mount is gone or hidden", h.Path())
	}
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", h.Name, err)
	}
	defer space.Close()
	return space.Do(func(ns.NetNS) error { return fn() })
}

// Links calls fn with a netlink handle that works in the namespace and ends with the call.
func (h Host) Links(fn func(*netlink.Handle) error) error {
	var nl *netlink.Handle
	err := h.Do(func() (err error) {
		nl, err = netlink.NewHandle()
		return err
	})
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
