package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
)

// pod is a pod's network namespace, opened.
type pod struct {
	path string
	ns   netns.NsHandle
	nl   *netlink.Handle
}

// errNoPod says that there is no network namespace at a path: for DEL nothing is left to do there.
var errNoPod = errors.New("no network namespace")

// openPod opens the namespace at path. The node's own namespace is refused: ADD would wire the node to itself
// and DEL would remove the node's uplink.
func openPod(path string) (*pod, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, errNoPod
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	kind, err := unix.IoctlRetInt(int(ns), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET { // a plain file is what an unmounted namespace leaves
		_ = ns.Close()
		return nil, errNoPod
	}
	return enterable(path, ns)
}

func enterable(path string, ns netns.NsHandle) (*pod, error) {
	own, err := netns.Get()
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open this process's network namespace: %w", err)
	}
	defer own.Close()
	if own.Equal(ns) {
		_ = ns.Close()
		return nil, failure(types.ErrInvalidNetNS, "CNI_NETNS %s is the node's own network namespace: want a pod's", path)
	}
	nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("enter %s: %w", path, err)
	}
	return &pod{path, ns, nl}, nil
}

func (p *pod) close() {
	p.nl.Close()
	_ = p.ns.Close()
}

// link is the interface named dev, nil if there is none.
func (p *pod) link(dev string) (netlink.Link, error) { return findLink(p.nl, dev) }

// linker is the part of a netlink handle that findLink uses.
type linker interface {
	LinkByName(name string) (netlink.Link, error)
}

func findLink(nl linker, dev string) (netlink.Link, error) {
	link, err := nl.LinkByName(dev)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	return link, err
}

// sysctls writes kernel parameters (net/ipv6/conf/eth0/accept_ra) in the pod's namespace. /proc/sys/net is that of
// the thread which opens the file. A thread that cannot go back stays locked, and is not used for anything else.
func (p *pod) sysctls(all ...netstate.Sysctl) error {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open this thread's network namespace: %w", err)
	}
	defer own.Close()
	if err := netns.Set(p.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", p.path, err)
	}
	err = writeSysctls(all)
	if back := netns.Set(own); back != nil {
		return errors.Join(err, fmt.Errorf("leave %s: %w", p.path, back))
	}
	runtime.UnlockOSThread()
	return err
}

// writeSysctls skips what the kernel does not have: one without IPv6 has no IPv6 parameters.
func writeSysctls(all []netstate.Sysctl) error {
	for _, s := range all {
		path := "/proc/sys/" + s.Name
		now, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || string(now) == s.Value+"\n" {
			continue
		}
		if err := os.WriteFile(path, []byte(s.Value), 0o644); err != nil {
			return fmt.Errorf("set %s to %s: %w", s.Name, s.Value, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
