package fake

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"github.com/twill-net/twill/netstate"
)

var errNoDevice = errors.New("no such device")

// link is a device of any kind; what only a VXLAN has is zero in the others.
type link struct {
	netstate.VXLAN
	index  int
	kind   string // "vxlan", "bridge", "veth", "tun" or "ipip"
	alias  string
	master string
	peer   string // of a veth

	offloadOff bool // of checksums
}

// newLink returns a wanted object's device.
func newLink(o netstate.Object) *link {
	l := &link{alias: netstate.Mark}
	switch o := o.(type) {
	case netstate.VXLAN:
		l.VXLAN, l.kind = o, "vxlan"
	case netstate.Bridge:
		l.VXLAN, l.kind = netstate.VXLAN{Name: o.Name, MTU: o.MTU, MAC: o.MAC, Up: o.Up}, "bridge"
	case netstate.Tun:
		l.VXLAN, l.kind = netstate.VXLAN{Name: o.Name, MTU: o.MTU, Up: o.Up}, "tun"
	case netstate.Tunnel:
		l.VXLAN, l.kind = netstate.VXLAN{Name: o.Name, Local: o.Local, MTU: o.MTU, Up: o.Up}, "ipip"
	}
	return l
}

func (l *link) object() netstate.Object {
	extra, marked := "", l.alias == netstate.Mark
	if l.master != "" {
		extra = "master " + l.master
	}
	switch l.kind {
	case "vxlan":
		v := l.VXLAN
		v.Marked, v.Extra = marked, extra
		return v
	case "bridge":
		return netstate.Bridge{Name: l.Name, MTU: l.MTU, MAC: l.MAC, Up: l.Up, Marked: marked, Extra: extra}
	case "tun":
		return netstate.Tun{Name: l.Name, MTU: l.MTU, Up: l.Up, Marked: marked, Extra: extra}
	case "ipip":
		return netstate.Tunnel{Name: l.Name, Local: l.Local, MTU: l.MTU, Up: l.Up, Marked: marked, Extra: extra}
	}
	return netstate.OtherLink{Name: l.Name, Type: l.kind}
}

func (k *Kernel) link(name string) (*link, error) {
	if l, ok := k.links[name]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("%s: %w", name, errNoDevice)
}

// putLink changes a device in place where the kernel can, or recreates it, marked as ours. It changes each part
// whether or not another was refused.
func (k *Kernel) putLink(o netstate.Object) error {
	want := newLink(o)
	have, ok := k.links[want.Name]
	if !ok {
		return k.create(want)
	}
	if !netstate.SameDevice(have.object(), o) {
		k.deleteLink(want.Name)
		return k.create(want)
	}
	err := k.setMTU(have, want.MTU)
	if want.MAC != (netstate.MAC{}) {
		k.setMAC(have, want.MAC)
	}
	have.alias, have.master = netstate.Mark, ""
	k.setUp(have, want.Up)
	return err
}

// create refuses a second VXLAN device for the same packets, and clamps its MTU silently.
func (k *Kernel) create(l *link) error {
	if _, ok := k.links[l.Name]; ok {
		return syscall.EEXIST
	}
	if l.kind == "vxlan" {
		for _, o := range k.links {
			if o.kind == l.kind && o.VNI == l.VNI && o.Port == l.Port && o.GBP == l.GBP &&
				netstate.FamilyOf(o.Local) == netstate.FamilyOf(l.Local) {
				return fmt.Errorf("another VXLAN device on this host has VNI %d and UDP port %d: %w", l.VNI, l.Port, syscall.EEXIST)
			}
		}
		if _, err := k.link(l.Dev); err != nil {
			return err
		}
		if top := k.maxMTU(l); l.MTU == 0 || l.MTU > top {
			l.MTU = top
		}
	}
	if l.MTU == 0 {
		l.MTU = 1500
	}
	k.indices++
	l.index = k.indices
	if l.MAC == (netstate.MAC{}) {
		l.MAC = netstate.MAC{0xfe, 0xed, 0, 0, byte(l.index >> 8), byte(l.index)}
	}
	k.links[l.Name] = l
	k.changed(l.Name)
	return nil
}

// maxMTU returns the most that a VXLAN device can have on its underlay.
func (k *Kernel) maxMTU(l *link) int {
	if l.Local.Is4() {
		return k.links[l.Dev].MTU - 50
	}
	return k.links[l.Dev].MTU - 70
}

// minIPv6 is the least MTU of IPv6: on a device with less there is none, and nothing of it stays.
const minIPv6 = 1280

func (k *Kernel) setMTU(l *link, mtu int) error {
	if l.kind == "vxlan" && mtu > k.maxMTU(l) {
		return syscall.EINVAL
	}
	if mtu < minIPv6 {
		k.purge(l.Name, func(o netstate.Object) bool {
			return o.Key().Prefix.Addr().Is6() && o.Key().Kind != netstate.KindFDB
		})
		k.forgetSysctls("net/ipv6/conf/" + l.Name + "/")
	}
	l.MTU = mtu
	k.changed(l.Name)
	return nil
}

func (k *Kernel) setOffload(o netstate.Offload) error {
	l, err := k.link(o.Dev)
	if err != nil {
		return err
	}
	l.offloadOff = !o.On
	k.changed(o.Dev)
	return nil
}

// setMAC deletes the device's neighbours, the permanent ones too.
func (k *Kernel) setMAC(l *link, mac netstate.MAC) {
	if l.MAC != mac {
		k.purge(l.Name, func(o netstate.Object) bool { return o.Key().Kind == netstate.KindNeigh })
	}
	l.MAC = mac
	k.changed(l.Name)
}

// setUp to false deletes the device's routes, neighbours and IPv6 addresses, but not its FDB.
func (k *Kernel) setUp(l *link, up bool) {
	if l.Up && !up {
		k.purge(l.Name, func(o netstate.Object) bool {
			kind := o.Key().Kind
			return kind == netstate.KindRoute || kind == netstate.KindNeigh ||
				kind == netstate.KindAddr && o.Key().Prefix.Addr().Is6()
		})
	}
	l.Up = up
	for _, o := range k.entries {
		if a, ok := o.(netstate.Addr); ok && a.Dev == l.Name {
			k.connect(a)
		}
	}
	k.changed(l.Name)
}

// deleteLink takes all that stands on the device, a veth's other end, and the VXLAN devices that use it.
func (k *Kernel) deleteLink(name string) {
	l, ok := k.links[name]
	if !ok {
		return
	}
	delete(k.links, name)
	delete(k.fast, netstate.Program{Dev: name}.Key())
	k.purge(name, func(netstate.Object) bool { return true })
	k.forgetSysctls("net/ipv4/conf/" + name + "/")
	k.forgetSysctls("net/ipv6/conf/" + name + "/")
	k.changed(name)
	k.deleteLink(l.peer)
	for other, o := range k.links {
		if o.kind == "vxlan" && o.Dev == name {
			k.deleteLink(other)
		}
		if o.master == name {
			o.master = ""
		}
	}
}

// purge deletes the entries and routes on a device that gone is true for.
func (k *Kernel) purge(dev string, gone func(netstate.Object) bool) {
	for key, o := range k.entries {
		if o.Key().Name == dev && gone(o) {
			delete(k.entries, key)
		}
	}
	var stay []route
	for _, r := range k.routes {
		if !r.uses(dev) || !gone(r.Route) {
			stay = append(stay, r)
		}
	}
	k.routes = stay
}

// sysctl returns a parameter's value, and whether it exists: a device's do as long as the device, and IPv6 on it, does.
func (k *Kernel) sysctl(name string) (string, bool) {
	parts := strings.Split(name, "/")
	if len(parts) == 5 && parts[2] == "conf" && parts[3] != "all" && parts[3] != "default" {
		l, ok := k.links[parts[3]]
		if !ok || parts[1] == "ipv6" && l.MTU < minIPv6 {
			return "", false
		}
	}
	if value, ok := k.sysctls[name]; ok {
		return value, true
	}
	if parts[len(parts)-1] == "accept_ra" {
		return "1", true
	}
	return "0", true
}

func (k *Kernel) setSysctl(name, value string) error {
	if _, ok := k.sysctl(name); !ok {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, syscall.ENOENT)
	}
	k.sysctls[name] = value
	k.changed("")
	return nil
}

func (k *Kernel) forgetSysctls(prefix string) {
	for name := range k.sysctls {
		if strings.HasPrefix(name, prefix) {
			delete(k.sysctls, name)
		}
	}
}

// reaches reports whether a is on the link of dev: in the prefix of an address, or of a route without a gateway.
func (k *Kernel) reaches(dev string, a netip.Addr) bool {
	for _, p := range k.connected(dev) {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// connected returns the prefixes that are reached through dev without a gateway.
func (k *Kernel) connected(dev string) []netip.Prefix {
	var prefixes []netip.Prefix
	for key := range k.entries {
		if key.Kind == netstate.KindAddr && key.Name == dev && k.links[dev].Up {
			prefixes = append(prefixes, key.Prefix.Masked())
		}
	}
	for _, r := range k.routes {
		if r.table == main && r.Dev == dev && !r.Via.IsValid() && r.Dst.Bits() > 0 {
			prefixes = append(prefixes, r.Dst)
		}
	}
	return prefixes
}
