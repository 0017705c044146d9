package follow

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/netstate/rtnl"
)

// spaceFiles are where namespaces have names, and then where processes show theirs.
var spaceFiles = []string{"/run/netns/*", "/run/docker/netns/*", "/proc/[0-9]*/ns/net"}

// spaces returns files of the namespaces that the devices of the calling thread's one lead to, by the kernel's ids for
// them. It needs the right to look at other processes; what cannot be opened is left out.
func spaces() (map[int]string, error) {
	all, seen := map[int]string{}, map[uint64]bool{}
	for _, pattern := range spaceFiles {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			id, inode, err := idOf(path)
			if err != nil || seen[inode] {
				continue
			}
			if seen[inode] = true; id >= 0 && all[id] == "" {
				all[id] = path
			}
		}
	}
	return all, nil
}

// idOf returns the kernel's id, in the calling thread's namespace, for another one, negative if it has none.
func idOf(path string) (id int, inode uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("a file without an inode number")
	}
	id, err = netlink.GetNetNsIdByFd(int(f.Fd()))
	return id, s.Ino, err
}

// behind returns the files of the namespaces behind veth devices, by the device's name, of those that may be entered:
// that takes CAP_SYS_ADMIN, which an agent's container does not have.
func behind() (map[string]string, error) {
	links, err := rtnl.Retry("links", netlink.LinkList)
	if err != nil {
		return nil, err
	}
	files, err := spaces()
	if err != nil {
		return nil, fmt.Errorf("look for the namespaces of pods: %w", err)
	}
	all := map[string]string{}
	for _, l := range links {
		file := files[l.Attrs().NetNsID]
		if l.Type() == "veth" && file != "" && enter(file)(func() error { return nil }) == nil {
			all[l.Attrs().Name] = file
		}
	}
	return all, nil
}

// enter returns a function that calls others in the namespace of a file.
func enter(path string) func(func() error) error {
	return func(do func() error) error {
		space, err := ns.GetNS(path)
		if err != nil {
			return fmt.Errorf("open the namespace of a pod: %w", err)
		}
		defer space.Close()
		return space.Do(func(ns.NetNS) error { return do() })
	}
}
