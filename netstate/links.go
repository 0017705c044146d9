package netstate

import (
	"fmt"
	"net/netip"
)

// IsOverlay reports whether o is a link that encapsulates pods' packets.
func IsOverlay(o Object) bool {
	switch o.(type) {
	case VXLAN, Tun, Tunnel, WireGuard:
		return true
	}
	return false
}

// MTU returns the MTU of a link of ours, 0 if it has none.
func MTU(o Object) int {
	switch o := o.(type) {
	case VXLAN:
		return o.MTU
	case Bridge:
		return o.MTU
	case Tun:
		return o.MTU
	case Tunnel:
		return o.MTU
	case WireGuard:
		return o.MTU
	}
	return 0
}

// SameDevice reports whether have becomes want by changing attributes in place. What nobody wants (Extra) mostly does:
// where the kernel refuses that, netstate/kernel makes the device again, but never a bridge, which would unplug the
// pods.
func SameDevice(have, want Object) bool {
	switch have := have.(type) { // a want of another type has no name, and so differs
	case VXLAN:
		want, _ := want.(VXLAN)
		want.MTU, want.MAC, want.Up, want.Marked, want.Extra = have.MTU, have.MAC, have.Up, have.Marked, have.Extra
		return want == have
	case Bridge:
		want, _ := want.(Bridge)
		return want.Name == have.Name
	case Tun:
		want, _ := want.(Tun)
		return want.Name == have.Name
	case Tunnel:
		want, _ := want.(Tunnel)
		want.MTU, want.Up, want.Marked, want.Extra = have.MTU, have.Up, have.Marked, have.Extra
		return want == have
	case WireGuard:
		want, _ := want.(WireGuard)
		return want.Name == have.Name
	}
	return false
}

// VXLAN is an overlay device. Slot: its name. Mark: its ifalias. Cascade: deleting it deletes its addresses,
// neighbours, FDB entries and routes; setting it down deletes its routes and neighbours (seen on 6.18).
// VNI, Port, Dev, Local, Learning and GBP are fixed at creation: changing one of them recreates the device.
type VXLAN struct {
	Name     string
	VNI      int
	Port     int        // UDP destination port
	Dev      string     // underlay interface
	Local    netip.Addr // an address of Dev: the outer source
	MTU      int
	MAC      MAC
	Learning bool
	GBP      bool // group based policy extension
	Up       bool
	Marked   bool
	Extra    string
}

// Key implements Object.
func (l VXLAN) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l VXLAN) String() string {
	return words("link", l.Name, "vxlan id", fmt.Sprint(l.VNI), "dev", l.Dev, "local", l.Local.String(),
		"dstport", fmt.Sprint(l.Port), "mtu", fmt.Sprint(l.MTU), "address", l.MAC.String(),
		flag(l.Learning, "learning"), flag(l.GBP, "gbp"), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}

// Bridge is the bridge that pods are plugged into. Slot, mark and cascade as for VXLAN.
type Bridge struct {
	Name   string
	MTU    int
	MAC    MAC
	Up     bool
	Marked bool
	Extra  string
}

// Key implements Object.
func (l Bridge) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l Bridge) String() string {
	return words("link", l.Name, "bridge mtu", fmt.Sprint(l.MTU), "address", l.MAC.String(), updown(l.Up),
		flag(!l.Marked, "unmarked"), l.Extra)
}

// OtherLink is a device that stands under a name of ours but is of a type that is not: it is never wanted.
type OtherLink struct{ Name, Type string }

// Key implements Object.
func (l OtherLink) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l OtherLink) String() string { return words("link", l.Name, "of type", l.Type) }
