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

// Carries implements Overlay: one device is for both families.
func (l Tun) Carries(bool) bool { return true }

// Tunnel is an IP-in-IP device without a remote end: ipip over IPv4, ip6ip6 over IPv6. A route's gateway, written onlink,
// is the outer destination. Slot, mark and cascade as for VXLAN. Local is fixed at creation.
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
	mode := "ip6ip6"
	if l.Local.Is4() {
		mode = "ipip"
	}
	return words("link", l.Name, mode, "local", l.Local.String(), "mtu", fmt.Sprint(l.MTU), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}

// Carries implements Overlay: a tunnel is of one family.
func (l Tunnel) Carries(is4 bool) bool { return l.Local.Is4() == is4 }

// SameDevice says whether o can be had from l by changing attributes in place.
func (l Tunnel) SameDevice(o Tunnel) bool {
	l.MTU, l.Up, l.Marked = o.MTU, o.Up, o.Marked
	return l == o
}
