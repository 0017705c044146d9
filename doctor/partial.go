package doctor

import (
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// What follows reports whether what is found at a place stops only some packets, or none of the flow.

func always(visit) bool { return true }

// hasUnderlay: the other family has none; what was written for this one still works.
func (v visit) hasUnderlay() bool {
	_, lacks := v.NoUnderlay[v.family()]
	return !lacks
}

// isIPv6: IPv6 forwards through a device that has no address, and the kernel keeps its routes.
func (v visit) isIPv6() bool { return v.family() == netstate.IPv6 }

// hasRoute: a record that this node refuses does not matter as long as the kernel still has the route.
func (v visit) hasRoute() bool {
	for _, o := range v.Have {
		if r, ok := o.(netstate.Route); ok && r.Dst.Contains(v.flow.Dst) && !r.Blackhole {
			return true
		}
	}
	return false
}

// isRouteRight: a route that was altered may still lead where it should.
func (v visit) isRouteRight() bool {
	have, ok := v.route()
	want, ok2 := v.Want[have.Key()].(netstate.Route)
	return ok && ok2 && have.Via == want.Via && have.Outer == want.Outer && have.Dev == want.Dev &&
		have.Blackhole == want.Blackhole
}

// isNotShadowed: the more specific route is one that does not match this packet.
func (v visit) isNotShadowed() bool {
	bits := v.path().Subnet.Bits()
	return !slices.ContainsFunc(v.Routes, func(r Route) bool {
		return r.Dst.Bits() > bits && r.Dst.Contains(v.flow.Dst)
	})
}

// isRouted: what is not encapsulated goes to a next hop that was found when the route was written.
func (v visit) isRouted() bool {
	_, ok := v.wrapping(v.path())
	return !ok
}

// hasCarrier: the device without a carrier is not one that leads to the peer.
func (v visit) hasCarrier() bool {
	return !slices.ContainsFunc(v.Ports, func(port Port) bool { return port.NoCarrier && v.leadsTo(port, v.path()) })
}

// ownPort returns the port of the flow's pod on this node.
func (v visit) ownPort() (p Port, ok bool) {
	pod := v.flow.Src
	if v.Node != v.flow.From {
		pod = v.flow.Dst
	}
	name := v.portOf(pod)
	i := slices.IndexFunc(v.Ports, func(p Port) bool { return p.Name == name })
	if i < 0 {
		return p, false
	}
	return v.Ports[i], true
}

// isPluggedIn: the bridge has another name, and the pod's port is still in it. Its IPv6 addresses went when it was down.
func (v visit) isPluggedIn() bool {
	port, ok := v.ownPort()
	return ok && port.Up && port.Master != "" && !v.isIPv6()
}

// isOwnRouteRight: the route to the node's own pods was altered, and still leads to the bridge, whatever its name is.
func (v visit) isOwnRouteRight() bool {
	port, _ := v.ownPort()
	for _, s := range v.Lease.Snapshot.Local.Stacks {
		have, ok := v.Have[netstate.ConnectedRoute(v.Bridge, s.Subnet).Key()].(netstate.Route)
		if s.Family() == v.family() && ok && (have.Dev == v.Bridge || have.Dev == port.Master) && !have.Blackhole {
			return true
		}
	}
	return false
}

// isForwarding: the port was altered, and the bridge still takes its frames and sends it those for the pod.
func (v visit) isForwarding() bool {
	port, _ := v.ownPort()
	have, _ := v.Have[netstate.Port{Name: port.Name}.Key()].(netstate.Port)
	misled := func(c netstate.Change) bool {
		f, ok := c.Was.(netstate.BridgeFDB)
		return ok && f.MAC == have.Pod
	}
	return !netstate.ExtraHas(have.Extra, "state") && !slices.ContainsFunc(v.Plan, misled)
}

// isBridgeFree: the device that takes packets takes those of another than the bridge.
func (v visit) isBridgeFree() bool {
	return !slices.ContainsFunc(v.Ports, func(p Port) bool { return p.Takes == v.Bridge })
}

// isOverlayFree: the device that takes packets takes those of a device that none from the peer come in by.
func (v visit) isOverlayFree() bool {
	return !slices.ContainsFunc(v.Ports, func(p Port) bool {
		return p.Takes != "" && v.leadsTo(Port{Name: p.Takes}, v.path())
	})
}

// roams: WireGuard answers a peer at the address that its last packet came from, whatever the peer published.
func (v visit) roams() bool { return strings.EqualFold(v.Lease.Network.Backend, "wireguard") }

// isNotStuck: the queueing discipline is at another place than where the packet leaves through, or lets some pass.
func (v visit) isNotStuck() bool {
	devs := []string{v.wantedDevice(v.path().Subnet), v.path().Outer.Dev}
	return !slices.ContainsFunc(v.Qdiscs, func(q Qdisc) bool {
		return slices.Contains(devs, q.Dev) && q.Hook == "root" && q.Dropped > 0 && q.Passed == 0
	})
}
