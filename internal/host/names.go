package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Dir is where named network namespaces are mounted; iproute2 uses the same place.
const Dir = "/run/netns"

// Create makes the namespace, with its loopback up. It fails when the name is taken.
func (h Host) Create() error {
	if err := prepare(); err != nil {
		return fmt.Errorf("create namespace %s: %w", h.Name, err)
	}
	if err := h.make(); err != nil {
		return fmt.Errorf("create namespace %s: %w", h.Name, err)
	}
	return h.Links(func(nl *netlink.Handle) error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo in %s: %w", h.Name, err)
		}
		return nl.LinkSetUp(lo)
	})
}

// make makes a namespace and mounts it on its name.
func (h Host) make() error {
	f, err := os.OpenFile(h.Path(), os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	space, err := ns.TempNetNS()
	if err != nil {
		return err
	}
	defer space.Close()
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", space.Fd()), h.Path(), "bind", unix.MS_BIND, "")
}

// prepare makes Dir a shared mount point, as iproute2 does before it makes a namespace. Otherwise iproute2 would later
// mount Dir over itself, and hide the mounts that are there already. The lock is iproute2's too: two programs that did
// this at once would mount Dir over itself again and again.
func prepare() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", Dir, err)
	}
	err = share()
	if errors.Is(err, unix.EINVAL) { // it is no mount point
		if err := unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("make %s a mount point: %w", Dir, err)
		}
		err = share()
	}
	if err != nil {
		return fmt.Errorf("share the mounts of %s: %w", Dir, err)
	}
	return nil
}

func share() error { return unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "") }

// Delete removes the name; the kernel removes the rest when the last process and socket have left. Absence is
// success.
func (h Host) Delete() error {
	if err := h.unmount(); err != nil {
		return err
	}
	err := os.Remove(h.Path())
	if errors.Is(err, unix.EBUSY) {
		err = h.removeHidden()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", h.Name, err)
	}
	return nil
}

// unmount takes away what is mounted on the name; a crash between making the file and the mount leaves nothing.
func (h Host) unmount() error {
	for {
		switch err := unix.Unmount(h.Path(), unix.MNT_DETACH); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("unmount namespace %s: %w", h.Name, err)
		}
	}
}

// removeHidden removes the file when a mount on it is hidden by another one on Dir, so that no path leads to it. It
// does so from another mount namespace, in which nothing is mounted on the file: the kernel then takes the
// file's mounts away in all others.
func (h Host) removeHidden() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread shares neither mounts nor working directory with the others now
		done <- h.removeApart()
	}()
	return <-done
}

func (h Host) removeApart() error {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	// The first thread does not end with its goroutine, and would keep a copy of all mounts.
	defer func() { _ = unix.Setns(int(home.Fd()), unix.CLONE_NEWNS) }()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for {
		if err := h.unmount(); err != nil {
			return err
		}
		switch err := unix.Unmount(Dir, unix.MNT_DETACH); {
		case errors.Is(err, unix.EINVAL): // it is the last one
			return os.Remove(h.Path())
		case err != nil:
			return fmt.Errorf("unmount %s: %w", Dir, err)
		}
	}
}

// Exists reports whether the namespace is there.
func (h Host) Exists() bool { return h.Do(func() error { return nil }) == nil }
