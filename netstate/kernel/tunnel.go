package kernel

import (
	"errors"
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

func decodeTunnel(l *netlink.Iptun, names map[int]string, e extra) netstate.Object {
	a := l.Attrs()
	remote := addrOf(l.Remote)
	e.add(a.ParentIndex != 0, "dev %s", names[a.ParentIndex])
	e.add(remote.IsValid() && !remote.IsUnspecified(), "remote %s", remote)
	e.add(l.Ttl != 0, "ttl %d", l.Ttl)
	e.add(l.Tos != 0, "tos %#x", l.Tos)
	e.add(l.PMtuDisc != 1, "nopmtudisc")
	e.add(l.EncapType != 0, "encap %d", l.EncapType)
	e.add(l.FlowBased, "external")
	e.add(l.Proto != unix.IPPROTO_IPIP, "proto %d", l.Proto)
	return netstate.Tunnel{Name: a.Name, Local: addrOf(l.Local), MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

func decodeTunnel6(l *netlink.Ip6tnl, e extra) netstate.Object {
	a := l.Attrs()
	e.add(!l.FlowBased, "local %s remote %s", addrOf(l.Local), addrOf(l.Remote))
	e.add(l.Proto != 0, "proto %d", l.Proto)
	e.add(l.EncapType != 0, "encap %d", l.EncapType)
	return netstate.Tunnel{Name: a.Name, External: l.FlowBased, MTU: a.MTU, Up: isUp(a), Marked: a.Alias == netstate.Mark, Extra: e.String()}
}

func (a *applier) putTunnel(want netstate.Tunnel) error {
	if have, ok := a.links[want.Name]; ok {
		if have, ok := decodeLink(have, a.names()).(netstate.Tunnel); ok && have.SameDevice(want) {
			return a.adjust(want.Name, attrs{mtu: want.MTU, up: want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	common := linkAttrs(want.Name, attrs{mtu: want.MTU, up: want.Up})
	if want.External {
		return explainTunnel("ip6_tunnel", a.createLink(&netlink.Ip6tnl{LinkAttrs: common, FlowBased: true}))
	}
	return explainTunnel("ipip", a.createLink(&netlink.Iptun{LinkAttrs: common, Local: want.Local.AsSlice(), PMtuDisc: 1, Proto: unix.IPPROTO_IPIP}))
}

// explainTunnel says what is wrong with a kernel that refuses a device.
func explainTunnel(module string, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no IP-in-IP devices, load the module %s or use another backend: %w", module, err)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("another %s device on this host takes all packets (ip -d link show type ip6tnl): %w", module, err)
	}
	return err
}

func (a *applier) putWireGuard(want netstate.WireGuard) error {
	if have, ok := a.links[want.Name]; ok {
		if have.Type() == "wireguard" && have.Attrs().MasterIndex == 0 {
			return a.adjust(want.Name, attrs{mtu: want.MTU, up: want.Up})
		}
		if err := a.deleteLink(want.Name); err != nil {
			return err
		}
	}
	err := a.createLink(&netlink.Wireguard{LinkAttrs: linkAttrs(want.Name, attrs{mtu: want.MTU, up: want.Up})})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has no WireGuard devices, load the module wireguard: %w", err)
	}
	return err
}

// names are the links' names by index.
func (a *applier) names() map[int]string {
	names := make(map[int]string, len(a.links))
	for name, l := range a.links {
		names[l.Attrs().Index] = name
	}
	return names
}
