package follow

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate"
)

// identity is what a namespace answers to: addresses and MACs, each with its device, and the lengths of the addresses.
type identity struct {
	watch.Place
	addrs map[netip.Addr]string
	bits  map[netip.Addr]int
	macs  map[string]string
}

// only returns the name of the only device with a MAC, empty if there are none or several.
func (id identity) only() string {
	name := ""
	for _, dev := range id.macs {
		if name != "" {
			return ""
		}
		name = dev
	}
	return name
}

// identify reads the addresses and MACs of all pods and of the namespaces between them.
func (n Network) identify() ([]identity, error) {
	var places []watch.Place
	for _, p := range n.Pods {
		places = append(places, n.Path(n.Pods[0], p)...)
	}
	places = watch.Enterable(places)
	all := make([]identity, len(places))
	var group errgroup.Group
	for i, p := range places {
		group.Go(func() error { return p.Do(func() (err error) { all[i], err = identityOf(p); return err }) })
	}
	return all, group.Wait()
}

func identityOf(s watch.Place) (identity, error) {
	id := identity{Place: s, addrs: map[netip.Addr]string{}, bits: map[netip.Addr]int{}, macs: map[string]string{}}
	devices, err := net.Interfaces()
	if err != nil {
		return id, fmt.Errorf("list devices of %s: %w", s.Host, err)
	}
	for _, d := range devices {
		if len(d.HardwareAddr) > 0 {
			id.macs[d.HardwareAddr.String()] = d.Name
		}
		addrs, err := d.Addrs()
		if err != nil {
			return id, fmt.Errorf("list addresses of %s on %s: %w", d.Name, s.Host, err)
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				addr := prefix.Addr().WithZone("")
				id.addrs[addr], id.bits[addr] = d.Name, prefix.Bits()
			}
		}
	}
	return id, nil
}

// mistaken returns what makes packets go to the wrong pod, by host: an address of a pod that it lacks, or that another
// namespace has too, and a MAC that two pods have.
func (n Network) mistaken(all []identity, asked map[string]map[netip.Addr]string) map[string][]locate.Object {
	found := map[string][]locate.Object{}
	for _, p := range n.Pods {
		i := slices.IndexFunc(all, func(id identity) bool { return id.Host == p.Host })
		if i < 0 {
			continue
		}
		for _, a := range p.Addrs {
			about := netip.PrefixFrom(a, a.BitLen())
			if all[i].addrs[a] == "" {
				dev := all[i].only()
				found[p.Host] = append(found[p.Host], locate.Object{Kind: locate.Address, Dev: dev, About: about,
					Text:  strings.TrimSuffix(fmt.Sprintf("%s is missing on %s", a, dev), " on "),
					Usual: "the address that the pod was given"})
			}
			n.takers(found, all, p.Host, a)
		}
		for _, a := range p.Outer {
			n.takers(found, all, p.Node, a)
		}
		for _, a := range p.Own {
			n.lacks(found, all, p, a, asked[p.Node][a])
		}
		n.foreign(found, all, p, all[i])
		n.sameMAC(found, all, p, all[i])
	}
	return found
}

// foreign adds the addresses of a pod that are another host's, and were not given to the pod.
func (n Network) foreign(found map[string][]locate.Object, all []identity, p Pod, id identity) {
	for a := range id.addrs {
		owner := slices.IndexFunc(all, func(o identity) bool { return o.Host != p.Host && o.addrs[a] != "" })
		if owner < 0 || a.IsLoopback() || a.IsLinkLocalUnicast() || slices.Contains(p.Addrs, a) {
			continue
		}
		add(found, p.Host, id.taken(a, all[owner].Host))
	}
}

// taken is that an address stands here which is another host's.
func (id identity) taken(a netip.Addr, owner string) locate.Object {
	dev := id.addrs[a]
	return locate.Object{Kind: locate.Address, Dev: dev, About: netip.PrefixFrom(a, a.BitLen()),
		Text: fmt.Sprintf("%s dev %s, which is the address of %s", a, dev, owner),
		Fix:  fmt.Sprintf("ip addr del %s/%d dev %s", a, id.bits[a], dev)}
}

func add(found map[string][]locate.Object, host string, o locate.Object) {
	if !slices.Contains(found[host], o) {
		found[host] = append(found[host], o)
	}
}

// lacks adds that a pod's node has no device with its address on the underlay, for which others ask through dev.
func (n Network) lacks(found map[string][]locate.Object, all []identity, p Pod, a netip.Addr, dev string) {
	i := slices.IndexFunc(all, func(id identity) bool { return id.Host == p.Node })
	if i < 0 || all[i].addrs[a] != "" {
		return
	}
	for _, other := range p.Own {
		dev = cmp.Or(dev, all[i].addrs[other])
	}
	o := locate.Object{Kind: locate.Address, Dev: dev, About: netip.PrefixFrom(a, a.BitLen()),
		Text: strings.TrimSuffix(fmt.Sprintf("%s is missing on %s", a, dev), " on "), Usual: "the node's address on the underlay"}
	add(found, p.Node, o)
}

// sameMAC adds that a pod's device has the MAC of another pod of its node. Of two pods with one MAC, the one whose address
// it is made of is right. Devices without an address of the pod are other networks', which may share MACs.
func (n Network) sameMAC(found map[string][]locate.Object, all []identity, p Pod, id identity) {
	for mac, dev := range id.macs {
		if !slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return id.addrs[a] == dev }) {
			continue
		}
		for _, other := range n.Pods {
			j := slices.IndexFunc(all, func(id identity) bool { return id.Host == other.Host })
			if other.Host == p.Host || other.Node != p.Node || j < 0 || all[j].macs[mac] == "" || p.isMadeOf(mac) {
				continue
			}
			for _, a := range slices.Concat(p.Addrs, other.Addrs) {
				add(found, p.Host, locate.Object{Kind: locate.Link, Dev: dev, About: netip.PrefixFrom(a, a.BitLen()),
					Text: fmt.Sprintf("%s: address %s, which %s has too", dev, mac, other.Host)})
			}
		}
	}
}

// isMadeOf reports whether a MAC is the one that the pod has by its addresses.
func (p Pod) isMadeOf(mac string) bool {
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return netstate.BridgeMAC(a).String() == mac })
}

// takers adds the hosts that have an address of another one.
func (n Network) takers(found map[string][]locate.Object, all []identity, owner string, a netip.Addr) {
	for _, other := range all {
		if other.addrs[a] != "" && other.Host != owner {
			add(found, other.Host, other.taken(a, owner))
		}
	}
}

// asked returns by host the devices through which others ask for an address there.
func asked(all []*seenAt) map[string]map[netip.Addr]string {
	found := map[string]map[netip.Addr]string{}
	for _, s := range all {
		found[s.Host] = map[netip.Addr]string{}
		for _, frame := range s.Frames {
			if seen, ok := (locate.Flow{}).See(frame); ok && seen.Asks.IsValid() && !frame.Out {
				found[s.Host][seen.Asks] = frame.Dev
			}
		}
	}
	return found
}
