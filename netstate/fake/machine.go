package fake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/twill-net/twill/netstate"
)

// Interfaces returns the links, in the order in which they were made.
func (k *Kernel) Interfaces(ctx context.Context) ([]netstate.Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	links := slices.SortedFunc(maps.Values(k.links), func(a, b *link) int { return cmp.Compare(a.index, b.index) })
	interfaces := make([]netstate.Interface, 0, len(links))
	for _, l := range links {
		ra, _ := k.sysctl("net/ipv6/conf/" + l.Name + "/accept_ra")
		forwards, _ := k.sysctl("net/ipv6/conf/all/forwarding")
		i := netstate.Interface{Name: l.Name, MTU: l.MTU, MAC: l.MAC, Up: l.Up,
			Owned: l.alias == netstate.Mark || k.isOurs(l.master), AcceptRA: ra != "0" && ra != "",
			LosesRA:      ra == "1" && forwards == "0" && l.master == "" && l.Name != "lo",
			ChecksumsOff: l.kind == "vxlan" && l.offloadOff, Ethernet: l.kind != "tun", Master: l.master}
		for _, f := range netstate.Families {
			if k.defaultDev(f) == l.Name {
				i.Default = append(i.Default, f)
			}
		}
		for _, p := range k.connected(l.Name) {
			if !linkLocal(p.Addr()) {
				i.OnLink = append(i.OnLink, p)
			}
		}
		for _, r := range k.routes {
			if r.table == main && r.Dev == l.Name && r.Protocol != netstate.Protocol && !linkLocal(r.Dst.Addr()) {
				i.Ways = append(i.Ways, netstate.Way{Dst: r.Dst, MTU: r.MTU})
			}
		}
		for key := range k.entries {
			if key.Kind == netstate.KindAddr && key.Name == l.Name && !linkLocal(key.Prefix.Addr()) {
				i.Addrs = append(i.Addrs, key.Prefix)
			}
		}
		for _, list := range [][]netip.Prefix{i.OnLink, i.Addrs} {
			slices.SortFunc(list, func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
		}
		i.OnLink = slices.Compact(i.OnLink)
		interfaces = append(interfaces, i)
	}
	return interfaces, ctx.Err()
}

// defaultDev returns the device of a family's preferred default route.
func (k *Kernel) defaultDev(f netstate.Family) (dev string) {
	best := -1
	for _, r := range k.routes {
		if r.table == main && r.Dst.Bits() == 0 && netstate.FamilyOf(r.Dst.Addr()) == f && (best < 0 || r.Metric < best) {
			best, dev = r.Metric, r.Dev
		}
	}
	return dev
}

// isOurs reports whether the link of this name is marked.
func (k *Kernel) isOurs(name string) bool {
	l, ok := k.links[name]
	return ok && l.alias == netstate.Mark
}

// RouteTo returns the interface of the longest prefix that holds dst, and its address that is nearest to dst.
func (k *Kernel) RouteTo(dst netip.Addr) (dev string, src netip.Addr, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	longest := -1
	offer := func(p netip.Prefix, through string) {
		if p.Contains(dst) && p.Bits() > longest {
			longest, dev = p.Bits(), through
		}
	}
	for name := range k.links {
		for _, p := range k.connected(name) {
			offer(p, name)
		}
	}
	for _, r := range k.routes {
		if r.table == main && r.Dev != "" && (r.Dst.Bits() > 0 || r.Dev == k.defaultDev(netstate.FamilyOf(r.Dst.Addr()))) {
			offer(r.Dst, r.Dev)
		}
	}
	if dev == "" {
		return "", src, fmt.Errorf("find the route to %s: %w", dst, syscall.ENETUNREACH)
	}
	for key := range k.entries {
		a := key.Prefix.Addr()
		if key.Kind == netstate.KindAddr && key.Name == dev && netstate.FamilyOf(a) == netstate.FamilyOf(dst) &&
			(!src.IsValid() || key.Prefix.Contains(dst)) {
			src = a
		}
	}
	return dev, src, nil
}
