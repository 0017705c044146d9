package netstate

import (
	"fmt"
	"net/netip"
	"strconv"
)

// ShortcutMode is how packets travel on a Shortcut.
type ShortcutMode string

// The modes.
const (
	Encapsulate ShortcutMode = "encap"  // the program writes the outer headers; VXLAN over IPv4
	ThroughVTEP ShortcutMode = "vtep"   // the program writes MAC addresses, and the VXLAN device encapsulates
	NextHop     ShortcutMode = "direct" // packets go as they are to a next hop on the underlay
)

// Shortcut is where the fast path's programs send packets to the pods of a peer, and where they expect its packets from.
// Slot: destination. Mark: being in the map of our programs. Cascade: none.
type Shortcut struct {
	Dst   netip.Prefix // the peer's subnet
	Mode  ShortcutMode
	Dev   string     // packets leave through it: the VXLAN device if the mode is ThroughVTEP, else the underlay
	From  string     // the peer's packets come in through it: the VXLAN device, or in mode NextHop the underlay
	Local netip.Addr // Encapsulate only: the outer source
	Outer netip.Addr // the outer destination in mode Encapsulate, the next hop in mode NextHop
	Src   MAC        // of the inner Ethernet header: this node's VTEP; not in mode NextHop
	MAC   MAC        // of the inner Ethernet header: the peer's VTEP; not in mode NextHop
	VNI   int        // Encapsulate only
	Port  int        // Encapsulate only: the UDP destination
	MTU   int        // of the inner packets, bytes
	Extra string
}

// Key implements Object.
func (s Shortcut) Key() Key { return Key{Kind: KindShortcut, Prefix: s.Dst} }

func (s Shortcut) String() string {
	switch s.Mode {
	case Encapsulate:
		return words("shortcut", s.Dst.String(), "encap vxlan id", strconv.Itoa(s.VNI), "from", s.Local.String(), "to",
			netip.AddrPortFrom(s.Outer, uint16(s.Port)).String(), s.rest())
	case ThroughVTEP:
		return words("shortcut", s.Dst.String(), s.rest())
	}
	return words("shortcut", s.Dst.String(), "via", s.Outer.String(), s.rest())
}

func (s Shortcut) rest() string {
	lladdr := ""
	if s.Mode != NextHop {
		lladdr = fmt.Sprintf("lladdr %s > %s", s.Src, s.MAC)
	}
	return words("dev", s.Dev, "in", s.From, lladdr, "mtu", strconv.Itoa(s.MTU), s.Extra)
}

// PodPort is where the fast path's programs find a pod of this node. Slot: the pod's address. Mark: being in the map of
// our programs. Cascade: none; the programs leave packets to a device that is gone to the kernel.
type PodPort struct {
	Addr   netip.Addr
	Dev    string // the host's end of the pod's veth pair
	MAC    MAC    // of the pod's end
	Bridge MAC    // what the pod knows its gateway by
	Extra  string
}

// Key implements Object.
func (p PodPort) Key() Key { return Key{Kind: KindPodPort, Prefix: Host(p.Addr)} }

func (p PodPort) String() string {
	return words("podport", p.Addr.String(), "dev", p.Dev, "lladdr", p.Bridge.String(), ">", p.MAC.String(), p.Extra)
}

// Switch is what all programs of the fast path need to know of the node. There is one. Mark: being in the map of our
// programs.
type Switch struct {
	SkipMark uint32 // packets whose conntrack entry has one of these bits in its mark take the kernel's path
	Extra    string // what of the kernel's parameters that the programs use is older than the kernel's
}

// Key implements Object.
func (Switch) Key() Key { return Key{Kind: KindSwitch} }

func (s Switch) String() string {
	return words("switch", fmt.Sprintf("skipmark %#x", s.SkipMark), s.Extra)
}

// ProgramName is what a Program does.
type ProgramName string

// The programs.
const (
	FromPod ProgramName = "from_pod" // sends pods' packets to peers; at the bridge
	ToPod   ProgramName = "to_pod"   // hands packets of peers to pods; at the VXLAN device, or at the underlay
)

// Program is one of the fast path's programs, attached where packets come in through a device. Slot: the device. Mark:
// the link's pin, or the filter's name. Cascade: it goes with its device.
type Program struct {
	Dev   string
	Name  ProgramName
	Extra string // how it is not the program that this agent brings
}

// Key implements Object.
func (p Program) Key() Key { return Key{Kind: KindProgram, Name: p.Dev} }

func (p Program) String() string {
	return words("program", string(p.Name), "dev", p.Dev, "ingress", p.Extra)
}
