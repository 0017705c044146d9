package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
)

// pod is a pod's network namespace, opened.
type pod struct {
	path    string
	ns, own netns.NsHandle // own is the node's
	nl      *rtnl          // in ns
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
	p := &pod{path: path, ns: ns, own: own}
	if own.Equal(ns) {
		p.close()
		return nil, failure(types.ErrInvalidNetNS, "CNI_NETNS %s is the node's own network namespace: want a pod's", path)
	}
	if p.nl, err = dialRTNLIn(ns, own); err != nil {
		p.close()
		return nil, fmt.Errorf("enter %s: %w", path, err)
	}
	return p, nil
}

func (p *pod) close() {
	if p.nl != nil {
		p.nl.close()
	}
	_ = p.own.Close()
	_ = p.ns.Close()
}

// sysctls writes kernel parameters (net/ipv6/conf/eth0/accept_ra) in the pod's namespace. /proc/sys/net is that of
// the thread which opens the file.
func (p *pod) sysctls(all ...netstate.Sysctl) error {
	return within(p.ns, p.own, func() error { return writeSysctls(all) })
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
