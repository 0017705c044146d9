package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
)

// place is where findings of these kinds stop a packet, and how to show what decides if there is none.
type place struct {
	name   string
	kinds  []kind
	entry  func(visit) string
	trials func(visit) []trial // that the packet has to pass
	// policies says that network policies decide there.
	policies bool
	// partial reports whether what is found there stops only some packets, or none of this flow; nil: it stops all.
	partial func(visit) bool
}

// leavePlaces are those of the node that sends, in the order in which a packet gets to them.
var leavePlaces = []place{
	{name: "lease", kinds: []kind{noLease}, partial: always},
	{name: "underlay", kinds: []kind{underlayMissing}, partial: visit.hasUnderlay},
	{name: "pod's interface", kinds: portKinds, entry: func(v visit) string { return v.portEntry(v.flow.Src) }},
	{name: "pod's port", kinds: []kind{podPort}, partial: visit.isForwarding},
	{name: "bridge", kinds: []kind{bridgeMissing}, partial: visit.isPluggedIn},
	{name: "bridge", kinds: []kind{bridgeDown, gatewayAddress}, entry: visit.bridgeEntry},
	{name: "device above the bridge", kinds: []kind{deviceTaken}, partial: visit.isBridgeFree},
	{name: "own route", kinds: []kind{ownRoute}, partial: visit.isOwnRouteRight},
	{name: "prerouting rules", trials: podTrial(0)},
	{name: "forwarding", kinds: []kind{ipForwardOff, deviceForwardingOff}, entry: visit.forwardingEntry},
	{name: "overlay device", kinds: []kind{moduleMissing, udpPortTaken, deviceForeign, vtepMissing, vtepDown},
		entry: visit.overlayEntry},
	{name: "carrier", kinds: []kind{noCarrier}, partial: visit.hasCarrier},
	{name: "overlay device's address", kinds: []kind{vtepAddress}, partial: visit.isIPv6},
	{name: "peer's record", kinds: []kind{duplicateUnderlay, duplicateMAC, duplicateSubnet, peerSkipped},
		partial: visit.hasRoute},
	{name: "policy rules", kinds: []kind{policyRule}},
	{name: "more specific route", kinds: []kind{routeShadowed, networkOverlap}, partial: visit.isNotShadowed},
	{name: "route", kinds: []kind{routeMissing, routeAltered}, entry: visit.routeEntry, partial: visit.isRouteRight},
	{name: "forward rules", trials: podTrial(1)},
	{name: "network policies", policies: true},
	{name: "postrouting rules", trials: podTrial(2)},
	{name: "neighbour", kinds: []kind{neighbourMissing, neighbourAltered}, entry: visit.neighbourEntry},
	{name: "forwarding database", kinds: []kind{fdbMissing, fdbAltered}, entry: visit.fdbEntry},
	{name: "peer's key", kinds: []kind{peerMissing, peerAltered}, entry: visit.keyEntry},
	{name: "agent", kinds: []kind{runnerDown}, entry: visit.runnerEntry},
	{name: "queueing discipline", kinds: []kind{qdiscDrops}, partial: visit.isNotStuck},
	{name: "MTU", kinds: []kind{vtepMTU, bridgeMTU, underlayMTU, podMTU}, entry: visit.mtuEntry, partial: always},
	{name: "output rules", trials: outerTrials(0)},
	{name: "way to the node", kinds: []kind{underlayUnreachable}, entry: visit.outerEntry, partial: visit.isRouted},
	{name: "neighbour on the underlay", kinds: []kind{underlayNeighbour},
		entry: func(v visit) string { return v.path().Neighbour.String() }},
	{name: "cloud", kinds: []kind{cloudForwardingOff, cloudEgress, cloudPeerUnrouted}},
	{name: "cloud's tables", kinds: []kind{cloudTableUnlisted}, partial: always},
	{name: "between the nodes", kinds: []kind{peerUnanswered, udpSentUnanswered, udpNotSent}},
	{name: "some packets between the nodes", kinds: []kind{pathMTU, tcpLost}, partial: always},
}

// arrivePlaces are those of the node that receives.
var arrivePlaces = []place{
	{name: "cloud", kinds: []kind{cloudForwardingOff, cloudTableFull, cloudRouteWrong, cloudRouteMissing}},
	{name: "cloud's permissions and addresses", kinds: []kind{cloudDenied, cloudOverlap}, partial: always},
	{name: "node's address", kinds: []kind{underlayMissing}, partial: visit.hasUnderlay},
	{name: "node's address", kinds: []kind{underlayAddress}, partial: visit.roams},
	{name: "node's address", kinds: []kind{underlayTaken}, partial: always},
	{name: "device above the underlay's or the overlay's", kinds: []kind{deviceTaken}, partial: visit.isOverlayFree},
	{name: "input rules", trials: outerTrials(2)},
	{name: "overlay device", entry: visit.overlayEntry,
		kinds: []kind{moduleMissing, udpPortTaken, deviceForeign, vtepMissing, vtepDown, vtepMAC, vtepAltered}},
	{name: "agent", kinds: []kind{runnerDown}, entry: visit.runnerEntry},
	{name: "reverse path check", kinds: []kind{rpFilter}, partial: always},
	{name: "prerouting rules", trials: podTrial(0)},
	{name: "forwarding", kinds: []kind{ipForwardOff, deviceForwardingOff}, entry: visit.forwardingEntry},
	{name: "forward rules", trials: podTrial(1)},
	{name: "network policies", policies: true},
	{name: "postrouting rules", trials: podTrial(2)},
	{name: "bridge", kinds: []kind{bridgeMissing}, partial: visit.isPluggedIn},
	{name: "bridge", kinds: []kind{bridgeDown, gatewayAddress}, entry: visit.bridgeEntry},
	{name: "own route", kinds: []kind{ownRoute}, partial: visit.isOwnRouteRight},
	{name: "pod's neighbour entry", kinds: []kind{podNeighbour}},
	{name: "pod's interface", kinds: portKinds, entry: func(v visit) string { return v.portEntry(v.flow.Dst) }},
	{name: "pod's port", kinds: []kind{podPort}, partial: visit.isForwarding},
}

// samePlaces are those between two pods of one node.
var samePlaces = []place{
	{name: "pod's interface", kinds: portKinds, entry: func(v visit) string { return v.portEntry(v.flow.Src) }},
	{name: "pod's port", kinds: []kind{podPort}, partial: visit.isForwarding},
	{name: "bridge", kinds: []kind{bridgeMissing}, partial: visit.isPluggedIn},
	{name: "bridge", kinds: []kind{bridgeDown}, entry: visit.bridgeEntry},
	{name: "bridged packets in forward rules",
		trials: func(v visit) []trial { return sameNode(v.Facts, v.flow.Src, v.flow.Dst) }},
	{name: "network policies", policies: true},
	{name: "other pod's interface", entry: func(v visit) string { return v.portEntry(v.flow.Dst) }},
}

var portKinds = []kind{podLinkDeleted, podUnplugged, podLinkDown}

// path returns the kernel's path to the other node.
func (v visit) path() Path {
	i := slices.IndexFunc(v.Paths, func(p Path) bool {
		return p.Subnet.Contains(v.flow.Dst) || p.Subnet.Contains(v.flow.Src)
	})
	if i < 0 {
		return Path{}
	}
	return v.Paths[i]
}

// podTrial tries the pod's packet at one of the hooks of forwarded.
func podTrial(hook int) func(visit) []trial {
	return func(v visit) []trial {
		dev := cmp.Or(v.out().Hop.Dev, v.wantedDevice(v.path().Subnet))
		p := rules.Packet{Src: v.flow.Src, Dst: v.flow.Dst, In: v.Bridge, Out: dev, Proto: "tcp", DPort: 80}
		if v.Node == v.flow.To {
			p.In, p.Out = dev, v.Bridge
		}
		if v.out().To.IsValid() { // what is sent there is a ping
			p.Proto, p.DPort, p.Answer = icmpName(p.Src), 0, v.flow.Src == v.out().To
		}
		return forwarded(p, "")[hook : hook+1]
	}
}

// outerTrials tries the encapsulated packet: at its two hooks on the way out, or from 2 on at those on the way in.
func outerTrials(first int) func(visit) []trial {
	return func(v visit) []trial {
		all := encapsulated(v.Facts, v.path())
		if len(all) == 0 {
			return nil
		}
		return all[first : first+2]
	}
}

func (v visit) portEntry(pod netip.Addr) string {
	if port := v.portOf(pod); port != "" {
		return fmt.Sprintf("%s at %s, port of %s", pod, port, v.Bridge)
	}
	return ""
}

// show returns the object of a key, empty if the kernel has none.
func (v visit) show(k netstate.Key) string {
	if o := v.Have[k]; o != nil {
		return o.String()
	}
	return ""
}

func (v visit) bridgeEntry() string { return v.show(linkKey(v.Bridge)) }

func (v visit) forwardingEntry() string {
	name := "net/ipv4/ip_forward"
	if v.isIPv6() {
		name = "net/ipv6/conf/all/forwarding"
	}
	return name + " = " + v.Sysctls[name]
}

func (v visit) route() (netstate.Route, bool) {
	subnet := v.path().Subnet
	if !subnet.IsValid() {
		return netstate.Route{}, false
	}
	return v.Have.PeerRoute(subnet)
}

func (v visit) routeEntry() string {
	if r, ok := v.route(); ok {
		return r.String()
	}
	return ""
}

// overlayEntry shows the device that encapsulates packets; empty for packets that are routed.
func (v visit) overlayEntry() string {
	if v.isRouted() {
		return ""
	}
	return v.show(linkKey(v.wantedDevice(v.path().Subnet)))
}

// neighbour returns the neighbour entry of the peer on a VXLAN device.
func (v visit) neighbour() (netstate.Neigh, bool) {
	p := v.path()
	vxlan, ok := v.Have[linkKey(v.wantedDevice(p.Subnet))].(netstate.VXLAN)
	if !ok {
		return netstate.Neigh{}, false
	}
	n, ok := v.Have[netstate.Neigh{Dev: vxlan.Name, IP: p.Subnet.Addr()}.Key()].(netstate.Neigh)
	return n, ok
}

func (v visit) neighbourEntry() string {
	if n, ok := v.neighbour(); ok {
		return n.String()
	}
	return ""
}

func (v visit) fdbEntry() string {
	n, ok := v.neighbour()
	if !ok {
		return ""
	}
	return v.show(netstate.FDB{Dev: n.Dev, MAC: n.MAC, Dst: v.path().Underlay}.Key())
}

// keyEntry shows the other node as the kernel's WireGuard has it.
func (v visit) keyEntry() string {
	subnet := v.path().Subnet
	for _, o := range v.Have.Sorted() {
		if p, ok := o.(netstate.Peer); ok && subnet.IsValid() && slices.Contains(p.Allowed[:], subnet) {
			return p.String()
		}
	}
	return ""
}

// runnerEntry shows the agent, if it moves the packets itself.
func (v visit) runnerEntry() string {
	switch r := v.Agent.Runner; {
	case !v.movesPackets():
		return ""
	case r != nil && r.Detail != "":
		return fmt.Sprintf("process %d: %s", v.Agent.PID, r.Detail)
	}
	return fmt.Sprintf("process %d moves the packets", v.Agent.PID)
}

func (v visit) mtuEntry() string { return fmt.Sprintf("%d bytes for pods", v.PodMTU) }

func (v visit) outerEntry() string {
	p := v.path()
	if !p.Underlay.IsValid() {
		return ""
	}
	return fmt.Sprintf("%s %s", p.Underlay, p.Outer)
}
