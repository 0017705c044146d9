package netstate

import (
	"fmt"
	"net/netip"
)

// Tun is a device whose packets a process reads and writes (/dev/net/tun). It stands, and so do its addresses and routes,
// while no process has it open: then packets into it are dropped. Slot, mark and cascade as for VXLAN.
type Tun struct {
	Name   string
	MTU    int
	Up     bool
	Marked bool
	Extra  string
}

// Key implements Object.
func (l Tun) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l Tun) String() string {
	return words("link", l.Name, "tun mtu", fmt.Sprint(l.MTU), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}

// Encapsulates implements Overlay.
func (l Tun) Encapsulates() {}

// Tunnel is an IPv4-in-IPv4 device (ipip) without a remote end: a route's gateway, written onlink, is the outer
// destination. There is no such thing for IPv6, whose routes refuse a gateway on one device that is reached through
// another (EINVAL, seen on 6.1). Slot, mark and cascade as for VXLAN. Local is fixed at creation.
type Tunnel struct {
	Name   string
	Local  netip.Addr // an address of the host: the outer source
	MTU    int
	Up     bool
	Marked bool
	Extra  string
}

// Key implements Object.
func (l Tunnel) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l Tunnel) String() string {
	return words("link", l.Name, "ipip local", l.Local.String(), "mtu", fmt.Sprint(l.MTU), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}

// Encapsulates implements Overlay.
func (l Tunnel) Encapsulates() {}

// SameDevice says whether o can be had from l by changing attributes in place.
func (l Tunnel) SameDevice(o Tunnel) bool {
	l.MTU, l.Up, l.Marked = o.MTU, o.Up, o.Marked
	return l == o
}
