package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// tunDevice is where TUN devices come from.
const tunDevice = "/dev/net/tun"

func decodeTun(l *netlink.Tuntap, e extra) netstate.Object {
	a := l.Attrs()
	if l.Mode != netlink.TUNTAP_MODE_TUN {
		return netstate.OtherLink{Name: a.Name, Type: "tap"}
	}
	e.add(l.NonPersist, "non-persistent")
	e.add(l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0, "multi-queue")
	return netstate.Tun{Name: a.Name, MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

// putTun makes a persistent device, or changes it in place.
func (a *applier) putTun(want netstate.Tun) error {
	if have, ok := a.links[want.Name]; ok {
		if have, ok := decodeLink(have, nil).(netstate.Tun); ok && have.Extra == "" {
			return a.adjust(want.Name, attrs{mtu: want.MTU, up: want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	if err := createTun(want.Name); err != nil {
		return fmt.Errorf("make the TUN device %s: %w", want.Name, err)
	}
	created, err := a.nl.LinkByName(want.Name)
	if err != nil {
		return err
	}
	a.links[want.Name] = created
	return a.adjust(want.Name, attrs{mtu: want.MTU, up: want.Up})
}

// createTun makes a device that stays when nobody has it open. A process that opens it can choose other flags than
// these, but not other queues.
func createTun(name string) error {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tunDevice, err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}

// decodeTunnel is an IP-in-IP device. What encapsulates something else than its own family is of another type.
func decodeTunnel(l netlink.Link, names map[int]string, e extra) netstate.Object {
	a := l.Attrs()
	o := netstate.Tunnel{Name: a.Name, MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark}
	e.add(a.ParentIndex != 0, "dev %s", names[a.ParentIndex])
	switch l := l.(type) {
	case *netlink.Iptun:
		o.Local = addrOf(l.Local)
		e.add(!addrOf(l.Remote).IsUnspecified() && addrOf(l.Remote).IsValid(), "remote %s", l.Remote)
		e.add(l.Ttl != 0, "ttl %d", l.Ttl)
		e.add(l.Tos != 0, "tos %#x", l.Tos)
		e.add(l.PMtuDisc != 1, "nopmtudisc")
		e.add(l.EncapType != 0, "encap %d", l.EncapType)
		e.add(l.FlowBased, "external")
		e.add(l.Proto != unix.IPPROTO_IPIP, "proto %d", l.Proto)
	case *netlink.Ip6tnl:
		o.Local = addrOf(l.Local)
		e.add(!addrOf(l.Remote).IsUnspecified() && addrOf(l.Remote).IsValid(), "remote %s", l.Remote)
		e.add(l.Ttl != hopLimit, "hoplimit %d", l.Ttl)
		e.add(l.Tos != 0, "tclass %#x", l.Tos)
		e.add(l.Flags != ignoreEncapLimit, "flags %#x", l.Flags)
		e.add(l.EncapType != 0, "encap %d", l.EncapType)
		e.add(l.FlowBased, "external")
		e.add(l.Proto != unix.IPPROTO_IPV6, "proto %d", l.Proto)
	}
	o.Extra = e.String()
	return o
}

// ignoreEncapLimit is IP6_TNL_F_IGN_ENCAP_LIMIT of linux/ip6_tunnel.h: without it the kernel adds a destination option
// of 8 bytes to each packet. hopLimit is that of outer IPv6 packets.
const ignoreEncapLimit, hopLimit = 1, 64

func (a *applier) putTunnel(want netstate.Tunnel) error {
	if have, ok := a.links[want.Name]; ok {
		if have, ok := decodeLink(have, a.names()).(netstate.Tunnel); ok && have.SameDevice(want) {
			return a.adjust(want.Name, attrs{mtu: want.MTU, up: want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	at := linkAttrs(want.Name, attrs{mtu: want.MTU, up: want.Up})
	if want.Local.Is4() {
		return a.createLink(&netlink.Iptun{LinkAttrs: at, Local: want.Local.AsSlice(), PMtuDisc: 1, Proto: unix.IPPROTO_IPIP})
	}
	return a.createLink(&netlink.Ip6tnl{LinkAttrs: at, Local: want.Local.AsSlice(), Ttl: hopLimit, Flags: ignoreEncapLimit,
		Proto: unix.IPPROTO_IPV6})
}

// names are the links' names by index.
func (a *applier) names() map[int]string {
	names := make(map[int]string, len(a.links))
	for name, l := range a.links {
		names[l.Attrs().Index] = name
	}
	return names
}
