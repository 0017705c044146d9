package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Interfaces returns the machine's interfaces: what an underlay can be chosen from.
func (k *Kernel) Interfaces(ctx context.Context) ([]netstate.Interface, error) {
	links, names, err := k.devices(func(device) bool { return true })
	if err != nil {
		return nil, err
	}
	addrs, err := k.addresses()
	if err != nil {
		return nil, err
	}
	routed, err := k.connected()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(addrs, func(a, b address) int { return unlikely(a) - unlikely(b) })
	ours := map[int]bool{}
	vrfs := map[int]string{}
	for _, l := range links {
		ours[l.Index()] = l.made()
		if l.Kind() == "vrf" {
			vrfs[l.Index()] = l.Name()
		}
	}
	forwards, _ := readSysctl(forwardsIPv6) // an error: this kernel has no IPv6
	carriers := map[int]bool{}
	interfaces := make([]netstate.Interface, 0, len(links))
	for _, l := range links {
		index, vrf := l.Index(), vrfs[l.Master()]
		i := netstate.Interface{Name: l.Name(), MTU: l.MTU(), MAC: l.mac(), Up: l.up(),
			Running: l.running(), Gateways: routed.gateways[index], Routed: routed.ours[index],
			OnLink: routed.onLink[index], Ways: routed.ways[index], Owned: ours[index] || ours[l.Master()],
			AcceptRA: l.acceptRA() != 0, LosesRA: forwards == "0" && l.losesRA() && (l.Master() == 0 || vrf != ""),
			Queued: l.Text(unix.IFLA_QDISC) != "noqueue", Ethernet: l.isEthernet(), VRF: vrf,
			Master: names[l.Master()]}
		i.Port, _ = l.port()
		if l.Kind() == "vxlan" {
			on, err := k.offloads.ethtool(i.Name, unix.ETHTOOL_GTXCSUM, 0)
			i.ChecksumsOff = err == nil && on == 0
		}
		for _, f := range netstate.Families {
			if routed.defaults[f] == index {
				i.Default = append(i.Default, f)
			}
		}
		for _, addr := range addrs {
			if addr.Index == index && !linkLocal(addr.Prefix.Addr()) {
				addr.addTo(&i)
				carriers[index] = true
			}
		}
		interfaces = append(interfaces, i)
	}
	k.carriers.Store(&carriers)
	if err := k.addBeside(interfaces); err != nil {
		return nil, err
	}
	return interfaces, ctx.Err()
}

// addBeside adds to pods' ports what somebody else has where their packets leave.
func (k *Kernel) addBeside(interfaces []netstate.Interface) error {
	var ports []string
	for _, i := range interfaces {
		if i.Port.Name != "" {
			ports = append(ports, i.Name)
		}
	}
	all, err := k.beside(ports)
	for n := range interfaces {
		interfaces[n].Beside = all[interfaces[n].Name]
	}
	return err
}

// addTo adds the address to its interface. Secondary addresses of IPv4 have the flag of temporary ones of IPv6.
func (a address) addTo(i *netstate.Interface) {
	i.Addrs = append(i.Addrs, a.Prefix)
	if a.Flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_SECONDARY) != 0 {
		i.Passing = append(i.Passing, a.Prefix.Addr())
	}
}

// unlikely orders addresses as flannel does: permanent ones first, then temporary ones, those with a lifetime,
// deprecated ones.
func unlikely(a address) (points int) {
	for flag, n := range map[uint32]int{unix.IFA_F_DEPRECATED: 4, unix.IFA_F_TEMPORARY: 1} {
		if a.Flags&flag != 0 {
			points += n
		}
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		points += 2
	}
	return points
}

// routed is what the routes say of the machine's interfaces, by their indices.
type routed struct {
	onLink   map[int][]netip.Prefix // what is reached without a gateway
	ways     map[int][]netstate.Way
	gateways map[int][]netip.Addr    // of default routes
	defaults map[netstate.Family]int // the interfaces of the preferred default routes
	ours     map[int][]netip.Prefix  // where routes of ours lead
}

// way is the preferred route to a prefix.
type way struct{ index, priority, mtu int }

// connected reads the routes of the machine.
func (k *Kernel) connected() (routed, error) {
	all := routed{map[int][]netip.Prefix{}, map[int][]netstate.Way{}, map[int][]netip.Addr{}, map[netstate.Family]int{},
		map[int][]netip.Prefix{}}
	best := map[netip.Prefix]way{}
	for _, family := range netstate.Families {
		err := k.routes(family, func(r route) {
			if r.kind != unix.RTN_UNICAST || r.table != unix.RT_TABLE_MAIN {
				return
			}
			if r.protocol == netstate.Protocol || k.leftByFlannel(r) {
				all.ours[r.index] = append(all.ours[r.index], r.dst)
			}
			dst, direct := r.dst.Masked(), !r.gw.IsValid() && r.hops == 0
			if b, ok := best[dst]; !linkLocal(dst.Addr()) && r.protocol != netstate.Protocol && (!ok || r.priority < b.priority) {
				best[dst] = way{r.index, r.priority, r.mtu}
			}
			switch {
			case dst.Bits() == 0 && r.gw.IsValid() && r.hops == 0:
				all.gateways[r.index] = append(all.gateways[r.index], r.gw)
			case dst.Bits() > 0 && direct && !linkLocal(dst.Addr()):
				all.onLink[r.index] = append(all.onLink[r.index], dst)
			}
		})
		if err != nil {
			return all, err
		}
	}
	for dst, w := range best {
		all.ways[w.index] = append(all.ways[w.index], netstate.Way{Dst: dst, MTU: w.mtu})
		if dst.Bits() == 0 {
			all.defaults[netstate.FamilyOf(dst.Addr())] = w.index
		}
	}
	for _, list := range all.ways {
		slices.SortFunc(list, func(a, b netstate.Way) int { return strings.Compare(a.Dst.String(), b.Dst.String()) })
	}
	for _, prefixes := range all.onLink {
		slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	}
	return all, nil
}

// RouteTo returns the interface through which the kernel would send to dst now, and the address that it would send
// from.
func (k *Kernel) RouteTo(dst netip.Addr) (dev string, src netip.Addr, err error) {
	h, err := k.Lookup(dst)
	if err != nil {
		err = fmt.Errorf("find the route to %s: %w", dst, err)
	}
	return h.Dev, h.Src, err
}
