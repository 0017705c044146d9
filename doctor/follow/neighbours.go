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
		a, ok := netip.AddrFromSlice(e.IP)
		if a = a.Unmap(); !ok || len(e.HardwareAddr) == 0 {
			continue
		}
		dev := names[e.LinkIndex]
		n := neighbour{ip: a, mac: e.HardwareAddr.String(), learnt: e.State&netlink.NUD_PERMANENT == 0}
		n.Object = locate.Object{Kind: locate.Neighbour, Dev: dev, About: netip.PrefixFrom(a, a.BitLen()),
			Text: fmt.Sprintf("%s dev %s lladdr %s", a, dev, e.HardwareAddr),
			Fix:  fmt.Sprintf("ip neigh del %s dev %s", a, dev)}
		all = append(all, n)
	}
	return all, err
}

// changed adds the devices that have another MAC than others have learned of them, and that nobody has any more.
func changed(found map[string][]locate.Object, all []identity, hosts []*seenAt) {
	for _, s := range hosts {
		for _, e := range s.neighs {
			owner := slices.IndexFunc(all, func(id identity) bool { return id.addrs[e.ip] != "" })
			known := slices.ContainsFunc(all, func(id identity) bool { return id.macs[e.mac] != "" })
			if !e.learnt || owner < 0 || known {
				continue
			}
			dev := all[owner].addrs[e.ip]
			add(found, all[owner].Host, locate.Object{Kind: locate.Link, Dev: dev, About: e.About,
				Text:  fmt.Sprintf("%s: address %s, which %s knows by %s", dev, all[owner].mac(dev), s.Host, e.mac),
				Usual: e.mac, Fix: fmt.Sprintf("ip link set dev %s address %s", dev, e.mac)})
		}
	}
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
