//go:build soak

package causes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// newWorld reads from a lab what causes are made of.
func newWorld(l *lab.Lab) (*world, error) {
	w := &world{cluster: map[family]netip.Prefix{}, router: map[family]netip.Addr{}, segment: map[family]netip.Prefix{}}
	for _, f := range l.Spec().Families() {
		w.families = append(w.families, familyOf(f))
	}
	w.cluster[ip4], w.cluster[ip6] = netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")
	w.router, w.segment = addrs("192.168.33.1", "fd33::1"), prefixes("192.168.33.0/24", "fd33::/64")
	for _, n := range l.Nodes() {
		known, err := newNode(n)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", n.Name, err)
		}
		w.nodes = append(w.nodes, known)
	}
	var err error
	w.sysctls, err = findSysctls(l)
	return w, err
}

func familyOf(f netstate.Family) family {
	if f == netstate.IPv6 {
		return ip6
	}
	return ip4
}

func newNode(n *lab.Node) (node, error) {
	k := node{name: n.Name, addr: map[family]netip.Addr{}, subnet: map[family]netip.Prefix{},
		gateway: map[family]netip.Addr{}, vtep: map[family]string{}, mac: map[string]string{}}
	for _, a := range n.Underlay() {
		k.addr[familyOf(netstate.FamilyOf(a))] = a
	}
	for _, s := range n.Subnets() {
		f := familyOf(netstate.FamilyOf(s.Addr()))
		k.subnet[f], k.gateway[f] = s, s.Addr().Next()
	}
	links, err := linksOf(n.Host)
	if err != nil {
		return k, err
	}
	byIndex := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		byIndex[a.Index] = a.Name
		k.mac[a.Name] = a.HardwareAddr.String()
		if l.Type() == "vxlan" {
			k.vtep[map[bool]family{true: ip6, false: ip4}[strings.Contains(a.Name, "-v6")]] = a.Name
		}
	}
	for _, p := range n.Pods() {
		links, err := linksOf(p.Host)
		if err != nil {
			return k, err
		}
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == podDevice })
		if i < 0 {
			return k, fmt.Errorf("%s has no %s", p.ID(), podDevice)
		}
		known := pod{id: p.ID(), addr: map[family]netip.Addr{}, mac: links[i].Attrs().HardwareAddr.String(),
			port: byIndex[links[i].Attrs().ParentIndex]}
		for _, a := range p.Addrs {
			known.addr[familyOf(netstate.FamilyOf(a))] = a
		}
		k.pods = append(k.pods, known)
	}
	return k, nil
}

func linksOf(h host.Host) (links []netlink.Link, err error) {
	err = h.Links(func(nl *netlink.Handle) error {
		links, err = nl.LinkList()
		return err
	})
	return links, err
}

// findSysctls lists the parameters of namespaces, of devices and of devices' neighbours that can be written.
func findSysctls(l *lab.Lab) (map[string][]string, error) {
	found := map[string][]string{}
	list := func(kind string, h host.Host, dirs []string, skip func(string) bool) error {
		return h.Do(func() error {
			for _, dir := range dirs {
				err := filepath.WalkDir(filepath.Join("/proc/sys", dir), func(path string, e os.DirEntry,
					err error) error {
					if err != nil || e.IsDir() {
						return err
					}
					if info, err := e.Info(); err != nil || info.Mode().Perm()&0o600 != 0o600 {
						return err
					}
					key := strings.TrimPrefix(path, "/proc/sys/")
					if !skip(key) {
						found[kind] = append(found[kind], strings.Replace(key, "/lo/", "/%s/", 1))
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	ofDevice := func(key string) bool {
		return strings.Contains(key, "/conf/") || strings.Contains(key, "/neigh/") || strings.HasSuffix(key, "/flush")
	}
	nothing := func(string) bool { return false }
	spaces := []string{"net/ipv4", "net/ipv6", "net/bridge", "net/netfilter"}
	n := l.Nodes()[0]
	err := errors.Join(list("node", n.Host, spaces, ofDevice),
		list("pod", n.Pods()[0].Host, spaces, ofDevice),
		list("device", n.Host, []string{"net/ipv4/conf/lo", "net/ipv6/conf/lo"}, nothing),
		list("neighbour", n.Host, []string{"net/ipv4/neigh/lo", "net/ipv6/neigh/lo"}, nothing))
	if err != nil {
		return nil, fmt.Errorf("list the kernel's parameters: %w", err)
	}
	return found, nil
}
