package netstate

import (
	"fmt"
	"net/netip"
)

// Overlay is a link that encapsulates pods' packets, of the families of which it has addresses.
type Overlay interface {
	Object
	Encapsulates()
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

// Encapsulates implements Overlay.
func (l VXLAN) Encapsulates() {}

// SameDevice says whether o can be had from l by changing attributes in place.
func (l VXLAN) SameDevice(o VXLAN) bool {
	l.MTU, l.MAC, l.Up, l.Marked = o.MTU, o.MAC, o.Up, o.Marked
	return l == o
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
