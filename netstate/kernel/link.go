package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// putLink changes a device in place where the kernel can, and recreates it otherwise. A bridge is not recreated for an
// attribute: the pods would be unplugged.
func (a *applier) putLink(want netstate.Object) error {
	made, err := a.encodeLink(want)
	if err != nil {
		return err
	}
	name, attrs := made.Attrs().Name, *made.Attrs()
	if _, ok := a.links[name]; ok {
		d, err := a.device(name)
		if err == nil && netstate.SameDevice(d.decode(a.names()), want) {
			err := a.explainPort(want, a.adjust(d, attrs))
			if _, isBridge := want.(netstate.Bridge); isBridge || !errors.Is(err, errFixed) {
				return err
			}
		}
		if err := a.deleteLink(name); err != nil {
			return err
		}
	}
	if _, isBridge := want.(netstate.Bridge); isBridge {
		made.Attrs().MTU = 0 // one that is set later stays; one that a bridge is made with gives way to its ports'
	}
	return explainLink(want, a.explainPort(want, a.createLink(made, attrs)))
}

// explainPort says what has the UDP port of a VXLAN device that the kernel does not bring up.
func (a *applier) explainPort(want netstate.Object, err error) error {
	v, ok := want.(netstate.VXLAN)
	if !ok || !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	h := portHolder(a.nl, v)
	switch {
	case h.Device != "":
		return fmt.Errorf("%s: delete it if nobody needs it, or set another Port in net-conf.json's Backend on all nodes: %w", h.Text, err)
	case h.Text != "":
		return fmt.Errorf("%s: stop it, or set another Port in net-conf.json's Backend on all nodes: %w", h.Text, err)
	}
	return err
}

// encodeLink returns the device as the library makes it. Only a VXLAN device needs another one, which must exist.
func (a *applier) encodeLink(want netstate.Object) (netlink.Link, error) {
	switch o := want.(type) {
	case netstate.VXLAN:
		l := &netlink.Vxlan{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, o.MAC), VxlanId: o.VNI, Port: o.Port,
			Learning: o.Learning, GBP: o.GBP, SrcAddr: o.Local.AsSlice()}
		underlay, ok := a.links[o.Dev]
		if !ok {
			return l, fmt.Errorf("%s: %w", o.Dev, errNoDevice)
		}
		l.VtepDevIndex = underlay.Attrs().Index
		return l, nil
	case netstate.Bridge:
		return &netlink.Bridge{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, o.MAC)}, nil
	case netstate.Tun:
		return &netlink.Tuntap{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, netstate.MAC{}), Mode: netlink.TUNTAP_MODE_TUN,
			Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_TUN_EXCL}, nil
	case netstate.Tunnel:
		if o.External {
			return &netlink.Ip6tnl{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, netstate.MAC{}), FlowBased: true}, nil
		}
		return &netlink.Iptun{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, netstate.MAC{}), Local: o.Local.AsSlice(),
			PMtuDisc: 1, Proto: unix.IPPROTO_IPIP}, nil
	case netstate.WireGuard:
		return &netlink.Wireguard{LinkAttrs: linkAttrs(o.Name, o.MTU, o.Up, netstate.MAC{})}, nil
	}
	return nil, fmt.Errorf("a %s is not a device", want.Key().Kind)
}

// linkAttrs are what every device of ours has. The zero MAC is none.
func linkAttrs(name string, mtu int, up bool, mac netstate.MAC) netlink.LinkAttrs {
	l := netlink.NewLinkAttrs()
	l.Name, l.MTU = name, mtu
	if mac != (netstate.MAC{}) {
		l.HardwareAddr = mac[:]
	}
	if up {
		l.Flags |= net.FlagUp
	}
	return l
}

// explainLink adds the meaning of the kernel's refusal of a device.
func explainLink(want netstate.Object, err error) error {
	exists, unknown := errors.Is(err, unix.EEXIST), errors.Is(err, unix.EOPNOTSUPP)
	switch o := want.(type) {
	case netstate.VXLAN:
		if exists {
			return fmt.Errorf("another VXLAN device on this host has VNI %d and UDP port %d: %w", o.VNI, o.Port, err)
		}
	case netstate.Tun:
		if err != nil {
			return fmt.Errorf("make the TUN device %s by /dev/net/tun: %w", o.Name, err)
		}
	case netstate.WireGuard:
		if unknown {
			return fmt.Errorf("this kernel has no WireGuard devices, load the module wireguard: %w", err)
		}
	case netstate.Tunnel:
		module := "ipip"
		if o.External {
			module = "ip6_tunnel"
		}
		if unknown {
			return fmt.Errorf("this kernel has no IP-in-IP devices, load the module %s or use another backend: %w", module, err)
		}
		if exists {
			return fmt.Errorf("another %s device on this host takes all packets (ip -d link show type ip6tnl): %w", module, err)
		}
	}
	return err
}

// createLink makes the device with what it must have, and marks it as ours.
func (a *applier) createLink(made netlink.Link, want netlink.LinkAttrs) error {
	if err := a.nl.LinkAdd(made); err != nil {
		return err
	}
	name := want.Name
	d, err := a.device(name)
	if err != nil {
		return err
	}
	a.links[name] = linkOf(d.Name(), d.Index())
	return a.adjust(d, want)
}

// linkOf is a device by its name and index, which is what the library's functions need of it.
func linkOf(name string, index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
}

// adjust makes an existing link as wanted without recreating it, and marks it as ours. Its error is errFixed where the
// device has to be made again.
func (a *applier) adjust(d device, want netlink.LinkAttrs) error {
	l := linkOf(d.Name(), d.Index())
	errs := []error{a.putBack(d)}
	if d.MTU() != want.MTU {
		errs = append(errs, a.nl.LinkSetMTU(l, want.MTU))
	}
	if want.HardwareAddr != nil && d.mac() != macOf(want.HardwareAddr) {
		errs = append(errs, a.nl.LinkSetHardwareAddr(l, want.HardwareAddr))
	}
	if !d.marked() {
		errs = append(errs, a.nl.LinkSetAlias(l, netstate.Mark))
	}
	switch up := want.Flags&net.FlagUp != 0; {
	case up && !d.up():
		errs = append(errs, a.nl.LinkSetUp(l))
	case !up && d.up():
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

// names returns the links' names by index.
func (a *applier) names() map[int]string {
	names := make(map[int]string, len(a.links))
	for name, l := range a.links {
		names[l.Attrs().Index] = name
	}
	return names
}
