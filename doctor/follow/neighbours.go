package follow

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// neighbour is an entry of a neighbour table.
type neighbour struct {
	locate.Object
	ip     netip.Addr
	mac    string
	learnt bool // the kernel learned it; else somebody wrote it
}

// neighbours returns the entries of the namespace's neighbour table that have a MAC.
func neighbours() (all []neighbour, err error) {
	links, err := rtnl.Retry("links", netlink.LinkList)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	entries, err := rtnl.Retry("neighbours", func() ([]netlink.Neigh, error) { return netlink.NeighList(0, 0) })
	for _, e := range entries {
		a := rtnl.Addr(e.IP)
		if !a.IsValid() || len(e.HardwareAddr) == 0 {
			continue
		}
		dev := names[e.LinkIndex]
		written := e.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0
		n := neighbour{ip: a, mac: e.HardwareAddr.String(), learnt: !written}
		n.Object = locate.Object{Kind: locate.Neighbour, Dev: dev, MAC: n.mac, About: netip.PrefixFrom(a, a.BitLen()),
			Text: fmt.Sprintf("%s dev %s lladdr %s", a, dev, e.HardwareAddr),
			Fix:  fmt.Sprintf("ip neigh del %s dev %s", a, dev)}
		all = append(all, n)
	}
	return all, err
}

// changed adds the devices that all others know by a MAC that nobody has: they have another one now. If it is one host
// only that thinks so, its entry is wrong, and so it is if the device's MAC is the one that its pod was given.
func (n Network) changed(found map[string][]locate.Object, all []identity, hosts []*seenAt) {
	for i, id := range all {
		for a, dev := range id.addrs {
			mac := id.mac(dev)
			old, times := known(a, hosts)
			someone := slices.ContainsFunc(all, func(o identity) bool { return o.macs[old] != "" })
			if old == "" || times < 2 || someone || n.isGiven(all[i].Host, mac) {
				continue
			}
			add(found, id.Host, locate.Object{Kind: locate.Link, Dev: dev, About: netip.PrefixFrom(a, a.BitLen()),
				Text:  fmt.Sprintf("%s: address %s, which others know by %s", dev, mac, old),
				Usual: old, Fix: fmt.Sprintf("ip link set dev %s address %s", dev, old)})
		}
	}
}

// known returns the MAC that hosts have learned of an address, and how many have; nothing if they do not agree.
func known(a netip.Addr, hosts []*seenAt) (mac string, times int) {
	for _, s := range hosts {
		for _, e := range s.neighs {
			switch {
			case e.ip != a || !e.learnt:
			case mac != "" && mac != e.mac:
				return "", 0
			default:
				mac = e.mac
				times++
			}
		}
	}
	return mac, times
}

// isGiven reports whether a host is a pod with the MAC of its address.
func (n Network) isGiven(host, mac string) bool {
	i := slices.IndexFunc(n.Pods, func(p Pod) bool { return p.Host == host })
	return i >= 0 && n.Pods[i].isMadeOf(mac)
}

// mac returns the MAC of a device.
func (id identity) mac(dev string) string {
	for mac, d := range id.macs {
		if d == dev {
			return mac
		}
	}
	return ""
}
