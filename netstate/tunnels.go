package netstate

import (
	"fmt"
	"net/netip"
)

// Tun is a device whose packets a process reads and writes (/dev/net/tun). It stands, and so do its addresses and
// routes, while no process has it open: then packets into it are dropped. Slot, mark and cascade as for VXLAN.
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

// Tunnel is a device that puts packets into IP packets of the same family, without a remote end. For IPv4 (ipip) a
// route's gateway, written onlink, is the outer destination. IPv6 refuses such a route, whose gateway is on one
// device and is reached through another (EINVAL, seen on 6.1); there the device (ip6tnl) is External. Slot, mark
// and cascade as for VXLAN. Local and External are fixed at creation.
type Tunnel struct {
	Name  string
	Local netip.Addr // an address of the host: the outer source; invalid if External
	// External says that routes give the outer addresses (Route.Outer). A network namespace has one such device at most.
	External bool
	MTU      int
	Up       bool
	Marked   bool
	Extra    string
}

// Key implements Object.
func (l Tunnel) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l Tunnel) String() string {
	kind := "ip6tnl external"
	if !l.External {
		kind = "ipip local " + l.Local.String()
	}
	return words("link", l.Name, kind, "mtu", fmt.Sprint(l.MTU), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}
