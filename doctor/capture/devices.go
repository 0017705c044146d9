package capture

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/packet"
)

// device is one of a place.
type device struct {
	index    int
	name     string
	ethernet bool // its packets have Ethernet headers
}

// list returns a place's devices.
func list(p watch.Place) (devices []device, err error) {
	err = p.Do(func() error {
		links, err := rtnl.Retry("links", netlink.LinkList)
		for _, l := range links {
			a := l.Attrs()
			ethernet := a.EncapType == "ether" || a.EncapType == "loopback"
			devices = append(devices, device{a.Index, a.Name, ethernet})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the devices of %s: %w", p.Host, err)
	}
	slices.SortFunc(devices, func(a, b device) int { return cmp.Compare(a.index, b.index) })
	return devices, nil
}

// Devices returns the names of a place's devices.
func Devices(p watch.Place) (names []string, err error) {
	devices, err := list(p)
	for _, d := range devices {
		names = append(names, d.name)
	}
	return names, err
}

// find returns the device that saw a packet. One that is gone already is known by its number.
func find(at watch.Place, p packet.Captured) device {
	devices, _ := list(at)
	for _, d := range devices {
		if d.index == p.Index {
			return d
		}
	}
	return device{p.Index, fmt.Sprintf("device%d", p.Index), packet.HasEthernet(p.Hardware)}
}
