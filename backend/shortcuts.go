package backend

import (
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// Accelerable is a Backend whose packets may take the fast path: nothing happens to them on their way but what a Shortcut
// says.
type Accelerable interface {
	Backend
	// Accelerable returns what the network config says of the fast path.
	Accelerable() FastPath
}

// FastPath are the keys FastPath and SkipMark of net-conf.json's Backend.
type FastPath struct {
	On       bool
	SkipMark uint32 // packets whose conntrack entry has one of these bits in its mark take the kernel's path
}

// Shortcuts returns the fast path of what is wanted: a shortcut for each route to a peer, a pod port for each address of
// node's pods on the bridge, and the programs. It is a projection of routes, neighbours, forwarding entries and VXLAN
// devices, so that both paths lead to the same place. Where a piece is missing there is no shortcut, and where there is
// no shortcut there is nothing.
func Shortcuts(want netstate.State, node Node, bridge string, skipMark uint32) netstate.State {
	p := projection{want: want, node: node, state: netstate.State{}}
	l, ok := want[netstate.Key{Kind: netstate.KindLink, Name: bridge}].(netstate.Bridge)
	if !ok || node.Queued[bridge] {
		return p.state
	}
	p.bridge = l
	p.shortcuts()
	if len(p.state) == 0 {
		return p.state
	}
	p.podPorts()
	p.state.Add(netstate.Switch{SkipMark: skipMark}, netstate.Program{Dev: bridge, Name: netstate.FromPod})
	return p.state
}

// projection is one call of Shortcuts.
type projection struct {
	want   netstate.State
	node   Node
	bridge netstate.Bridge
	state  netstate.State
}

// tunnelEnd is an address in frames that a VXLAN device sends.
type tunnelEnd struct {
	dev string
	mac netstate.MAC
}

func (p *projection) shortcuts() {
	ends := map[tunnelEnd]netip.Addr{} // invalid: frames go to several nodes
	routes := map[netip.Prefix]netstate.Route{}
	for _, o := range p.want {
		switch o := o.(type) {
		case netstate.FDB:
			end := tunnelEnd{o.Dev, o.MAC}
			if _, several := ends[end]; several {
				o.Dst = netip.Addr{}
			}
			ends[end] = o.Dst
		case netstate.Route:
			if other, ok := routes[o.Dst]; !ok || o.Metric < other.Metric {
				routes[o.Dst] = o
			}
		}
	}
	for _, r := range routes {
		if s, ok := p.shortcut(r, ends); ok {
			p.state.Add(s, netstate.Program{Dev: s.From, Name: netstate.ToPod})
		}
	}
}

// shortcut returns what a route does, and reports whether a program can do the same.
func (p *projection) shortcut(r netstate.Route, ends map[tunnelEnd]netip.Addr) (netstate.Shortcut, bool) {
	plain := netstate.Route{Dst: r.Dst, Via: r.Via, Dev: r.Dev, Metric: r.Metric, Onlink: r.Onlink, Protocol: netstate.Protocol}
	if r != plain || !r.Via.IsValid() {
		return netstate.Shortcut{}, false
	}
	if l, ok := p.want[netstate.Key{Kind: netstate.KindLink, Name: r.Dev}]; ok {
		vtep, isVXLAN := l.(netstate.VXLAN)
		if !isVXLAN {
			return netstate.Shortcut{}, false
		}
		return p.tunnel(r, vtep, ends)
	}
	underlay, ok := p.underlay(r.Dev, netstate.FamilyOf(r.Via))
	return netstate.Shortcut{Dst: r.Dst, Mode: netstate.NextHop, Dev: r.Dev, From: r.Dev, Outer: r.Via, MTU: underlay.MTU},
		ok && underlay.MTU > 0
}

// tunnel returns the shortcut through a VXLAN device. With GBP the device tells the peer the packet's mark, which no
// program knows.
func (p *projection) tunnel(r netstate.Route, l netstate.VXLAN, ends map[tunnelEnd]netip.Addr) (netstate.Shortcut, bool) {
	neigh, known := p.want[netstate.Neigh{Dev: r.Dev, IP: r.Via}.Key()].(netstate.Neigh)
	peer := ends[tunnelEnd{r.Dev, neigh.MAC}]
	underlay, carried := p.underlay(l.Dev, netstate.FamilyOf(l.Local))
	if !known || !peer.IsValid() || !carried || !l.Up || l.GBP || netstate.FamilyOf(peer) != netstate.FamilyOf(l.Local) {
		return netstate.Shortcut{}, false
	}
	s := netstate.Shortcut{Dst: r.Dst, Mode: netstate.ThroughVTEP, Dev: l.Name, From: l.Name, Src: l.MAC, MAC: neigh.MAC, MTU: l.MTU}
	if peer.Is4() && !p.computesChecksums(l.Name) && !p.node.Queued[l.Name] {
		s.Mode, s.Dev, s.Local, s.Outer, s.VNI, s.Port = netstate.Encapsulate, l.Dev, l.Local, peer, l.VNI, l.Port
		s.MTU = min(l.MTU, underlay.MTU-encapsulation)
	}
	return s, s.MTU > 0
}

// encapsulation is what VXLAN adds to a packet on an underlay of IPv4, in bytes.
const encapsulation = 50

// computesChecksums reports whether a device computes the checksums of its packets, because the NIC cannot be trusted
// with them: then they have to go through it.
func (p *projection) computesChecksums(dev string) bool {
	if o, ok := p.want[netstate.Key{Kind: netstate.KindOffload, Name: dev}].(netstate.Offload); ok {
		return !o.On
	}
	return p.node.ChecksumsOff[dev]
}

// underlay returns the underlay of a family, if it is that device.
func (p *projection) underlay(dev string, f netstate.Family) (Underlay, bool) {
	u, ok := p.node.Underlay(f)
	return u, ok && u.Dev == dev
}

// podPorts adds the addresses of this node's pods. One that is not in the node's subnets is not reached through the
// bridge, one that two ports have is nobody's, and nothing may go around a queueing discipline, or what somebody else has at a
// port.
func (p *projection) podPorts() {
	var subnets []netip.Prefix
	for _, o := range p.want {
		if a, ok := o.(netstate.Addr); ok && a.Dev == p.bridge.Name {
			subnets = append(subnets, a.Prefix)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, port := range p.node.Ports {
		if _, wanted := p.want[port.Key()]; !wanted || port.Bridge != p.bridge.Name {
			continue
		}
		for _, addr := range port.Addresses() {
			o := netstate.PodPort{Addr: addr, Dev: port.Name, MAC: port.Pod, Bridge: p.bridge.MAC}
			switch {
			case seen[addr]:
				delete(p.state, o.Key())
			case !p.node.Queued[port.Name] && p.node.Beside[port.Name] == "" && port.Pod.IsUnicast() && contained(subnets, addr):
				p.state.Add(o)
			}
			seen[addr] = true
		}
	}
}

// contained reports whether an address of a pod is in one of the subnets.
func contained(subnets []netip.Prefix, a netip.Addr) bool {
	for _, s := range subnets {
		if s.Contains(a) && s.Addr() != a && !a.IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}
