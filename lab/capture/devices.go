package capture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/packet"
)

// device is one of a host.
type device struct {
	index    int
	name     string
	ethernet bool // its packets have Ethernet headers
}

// list returns a host's devices.
func list(h host.Host) ([]device, error) {
	var devices []device
	err := h.Links(func(nl *netlink.Handle) error {
		links, err := nl.LinkList()
		for _, l := range links {
			a := l.Attrs()
			ethernet := a.EncapType == "ether" || a.EncapType == "loopback"
			devices = append(devices, device{a.Index, a.Name, ethernet})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the devices of %s: %w", h.Name, err)
	}
	slices.SortFunc(devices, func(a, b device) int { return cmp.Compare(a.index, b.index) })
	return devices, nil
}

// find returns the device that saw a packet. One that is gone already is known by its number.
func find(h host.Host, p packet.Captured) device {
	devices, _ := list(h)
	for _, d := range devices {
		if d.index == p.Index {
			return d
		}
	}
	return device{p.Index, fmt.Sprintf("device%d", p.Index), packet.HasEthernet(p.Hardware)}
}

// choose returns the hosts and devices that arguments name, in the lab's order.
func choose(l *lab.Lab, args []string) ([]*source, error) {
	places := l.Places()
	chosen := map[string]*source{}
	for _, p := range places {
		if len(args) == 0 && p.Host.Exists() {
			chosen[p.Name] = newSource(p)
		}
	}
	whole := map[string]bool{}
	for _, arg := range args {
		place, dev, err := locate(places, arg)
		if err != nil {
			return nil, err
		}
		if chosen[place.Name] == nil {
			chosen[place.Name] = newSource(place)
		}
		if dev == "" {
			whole[place.Name] = true
			continue
		}
		chosen[place.Name].only[dev] = true
	}
	var sources []*source
	for _, p := range places {
		s := chosen[p.Name]
		if s == nil {
			continue
		}
		if whole[p.Name] {
			clear(s.only)
		}
		sources = append(sources, s)
	}
	return sources, nil
}

func newSource(p lab.Place) *source {
	return &source{Place: p, only: map[string]bool{}, ids: map[int]int{}}
}

// locate returns the host that an argument names, and the device, empty for all.
func locate(places []lab.Place, arg string) (lab.Place, string, error) {
	var names []string
	for _, p := range places {
		if p.Name == arg {
			return p, "", nil
		}
		names = append(names, p.Name)
	}
	at := strings.LastIndex(arg, "/")
	i := slices.Index(names, arg[:max(at, 0)])
	if i < 0 {
		return lab.Place{}, "", fmt.Errorf("the lab has no host %q: want one of %s, or HOST/DEVICE", arg,
			strings.Join(names, ", "))
	}
	devices, err := list(places[i].Host)
	if err != nil {
		return lab.Place{}, "", err
	}
	var known []string
	for _, d := range devices {
		if d.name == arg[at+1:] {
			return places[i], d.name, nil
		}
		known = append(known, d.name)
	}
	return lab.Place{}, "", fmt.Errorf("%s has no device %q: want one of %s", places[i].Name, arg[at+1:],
		strings.Join(known, ", "))
}
