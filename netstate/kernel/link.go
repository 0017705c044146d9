package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// putVXLAN creates the device, changes it in place where the kernel can, or recreates it.
func (a *applier) putVXLAN(want netstate.VXLAN) error {
	if have, ok := a.links[want.Name]; ok {
		if have, ok := decodeLink(have, a.names()).(netstate.VXLAN); ok && have.SameDevice(want) {
			return a.adjust(want.Name, attrs{want.MTU, want.MAC, want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	underlay, err := a.link(want.Dev)
	if err != nil {
		return err
	}
	err = a.createLink(&netlink.Vxlan{
		LinkAttrs: linkAttrs(want.Name, attrs{want.MTU, want.MAC, want.Up}),
		VxlanId:   want.VNI, Port: want.Port, Learning: want.Learning, GBP: want.GBP,
		VtepDevIndex: underlay.Attrs().Index, SrcAddr: want.Local.AsSlice(),
	})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("another VXLAN device on this host has VNI %d and UDP port %d: %w", want.VNI, want.Port, err)
	}
	return err
}

func (a *applier) putBridge(want netstate.Bridge) error {
	if have, ok := a.links[want.Name]; ok {
		if have.Type() == "bridge" && have.Attrs().MasterIndex == 0 {
			return a.adjust(want.Name, attrs{want.MTU, want.MAC, want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	return a.createLink(&netlink.Bridge{LinkAttrs: linkAttrs(want.Name, attrs{want.MTU, want.MAC, want.Up})})
}

// attrs is what every owned link has and what can be changed in place.
type attrs struct {
	mtu int
	mac netstate.MAC // zero: the link has none
	up  bool
}

func linkAttrs(name string, want attrs) netlink.LinkAttrs {
	l := netlink.NewLinkAttrs()
	l.Name, l.MTU = name, want.mtu
	if want.mac != (netstate.MAC{}) {
		l.HardwareAddr = net.HardwareAddr(want.mac[:])
	}
	if want.up {
		l.Flags |= net.FlagUp
	}
	return l
}

func (a *applier) createLink(l netlink.Link) error {
	if err := a.nl.LinkAdd(l); err != nil {
		return err
	}
	name := l.Attrs().Name
	created, err := a.nl.LinkByName(name)
	if err != nil {
		return err
	}
	a.links[name] = created
	return a.nl.LinkSetAlias(created, netstate.Mark)
}

// adjust makes an existing link as wanted without recreating it, and marks it as ours.
func (a *applier) adjust(name string, want attrs) error {
	l, err := a.link(name)
	if err != nil {
		return err
	}
	have := l.Attrs()
	var errs []error
	if have.MTU != want.mtu {
		errs = append(errs, a.nl.LinkSetMTU(l, want.mtu))
	}
	if want.mac != (netstate.MAC{}) && macOf(have.HardwareAddr) != want.mac {
		errs = append(errs, a.nl.LinkSetHardwareAddr(l, want.mac[:]))
	}
	if have.Alias != netstate.Mark {
		errs = append(errs, a.nl.LinkSetAlias(l, netstate.Mark))
	}
	switch {
	case want.up && !isUp(have):
		errs = append(errs, a.nl.LinkSetUp(l))
	case !want.up && isUp(have):
		errs = append(errs, a.nl.LinkSetDown(l))
	}
	return errors.Join(errs...)
}

func (a *applier) deleteLink(name string) error {
	l, err := a.link(name)
	if err != nil {
		return err
	}
	delete(a.links, name)
	return ignoreAbsent(a.nl.LinkDel(l))
}
