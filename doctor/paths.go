package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// checkPaths is about what the kernel would really do with packets to each peer.
func (e *exam) checkPaths() {
	drifted := map[netip.Prefix]bool{}
	for _, c := range e.Plan {
		if c.Key().Kind == netstate.KindRoute {
			drifted[c.Key().Prefix] = true
		}
	}
	e.checkOwnSubnets(drifted)
	e.checkCarriers()
	for _, p := range e.Paths {
		e.checkOuter(p)
		dev := e.wantedDevice(p.Subnet)
		shadows := 0
		for _, r := range e.Routes {
			if r.Dst.Bits() <= p.Subnet.Bits() || !p.Subnet.Contains(r.Dst.Addr()) {
				continue
			}
			if shadows++; !e.isConnected(r) {
				e.findPeer(routeShadowed, p.Node, p.Subnet.String()+" dev "+dev, r.String(), "ip route del "+r.String())
			}
		}
		if dev != "" && !drifted[p.Subnet] && p.Hop.Dev != dev && shadows == 0 {
			e.findDiverted(p, dev)
		}
	}
}

// checkCarriers is about the devices that packets to other nodes leave through: the overlay's and the underlay's. A TUN
// device has none while the agent does not run, which is another finding.
func (e *exam) checkCarriers() {
	isMoverDown := !e.Agent.Running || e.Agent.Runner != nil && !e.Agent.Runner.Running
	for _, port := range e.Ports {
		leads := func(p Path) bool { return e.leadsTo(port, p) }
		_, isTun := e.Want[linkKey(port.Name)].(netstate.Tun)
		if port.NoCarrier && port.Up && (!isTun || !isMoverDown) && slices.ContainsFunc(e.Paths, leads) {
			e.find(noCarrier, port.Name, "a carrier", "none", "")
		}
	}
}

// leadsTo reports whether packets to a peer leave through a device, as they are or encapsulated.
func (f Facts) leadsTo(port Port, p Path) bool {
	return p.Outer.Dev == port.Name || f.wantedDevice(p.Subnet) == port.Name
}

// checkOwnSubnets: a more specific route that leads past the bridge, or one that the kernel prefers, cuts off pods of
// this node. The first address is the overlay device's, and IPv6 has a route to it.
func (e *exam) checkOwnSubnets(drifted map[netip.Prefix]bool) {
	if e.Bridge == "" {
		return // the pods are somebody else's, such as Docker's
	}
	for _, p := range e.Own {
		if p.Hop.Dev != e.Bridge && !drifted[p.Subnet] {
			f := e.find(routeShadowed, p.Subnet.String()+" dev "+e.Bridge, "packets for this node's pods take this route",
				cmp.Or(p.Hop.By, p.Hop.String()), p.Hop.Fix)
			if p.Hop.Fix == "" {
				f.says("ip route get " + p.Subnet.Addr().Next().Next().String() + ", and delete the route that it names")
			}
		}
	}
	for _, stack := range e.Lease.Snapshot.Local.Stacks {
		for _, r := range e.Routes {
			tunnel := r.Dst.IsSingleIP() && r.Dst.Addr() == stack.Subnet.Masked().Addr()
			if r.Dst.Bits() > stack.Subnet.Bits() && stack.Subnet.Contains(r.Dst.Addr()) && r.Dev != e.Bridge && !tunnel &&
				!e.isConnected(r) {
				e.find(routeShadowed, stack.Subnet.String()+" dev "+e.Bridge, "no other route there", r.String(),
					"ip route del "+r.String())
			}
		}
	}
}

// findDiverted adds the finding about a peer whose route is right and not used.
func (e *exam) findDiverted(p Path, dev string) {
	k, actual, fix := routeShadowed, p.Hop.String(), ""
	if e.ByUnderlay {
		k = cloudEgress
	}
	if p.Hop.By != "" {
		actual, fix = p.Hop.By, p.Hop.Fix
	} else if len(e.PolicyRules) > 0 {
		k, actual = policyRule, actual+"; rules: "+strings.Join(e.PolicyRules, "; ")
	} else if i := e.routeTo(p.Pod, p.Hop.Dev); i >= 0 {
		if e.isConnected(e.Routes[i]) {
			return
		}
		if actual = e.Routes[i].String(); e.isKept(e.Routes[i]) {
			e.findPeer(k, p.Node, "packets to "+p.Pod.String()+" leave through dev "+dev, actual, "").
				says("delete this node's pods that have addresses of " + e.Routes[i].Dst.String())
			return
		}
		fix = "ip route del " + actual
	}
	e.findPeer(k, p.Node, "packets to "+p.Pod.String()+" leave through dev "+dev, actual, fix)
}

// routeTo returns the index of the longest prefix that leads to an address through a device, or -1.
func (e *exam) routeTo(a netip.Addr, dev string) int {
	best := -1
	for i, r := range e.Routes {
		if r.Dev == dev && r.Dst.Contains(a) && (best < 0 || r.Dst.Bits() > e.Routes[best].Dst.Bits()) {
			best = i
		}
	}
	return best
}

// checkOuter is about the path to the peer's own address.
func (e *exam) checkOuter(p Path) {
	u, ok := e.underlay(p.Underlay)
	switch state := p.Neighbour.State; {
	case !ok:
	case p.Outer.Error != "":
		e.findPeer(underlayUnreachable, p.Node, p.Underlay.String()+" is reached through dev "+u.Dev, p.Outer.Error, "").
			says("ip route get " + p.Underlay.String())
	case state == netstate.NeighFailed:
		// The kernel asked in vain, maybe long ago: it asks again only for a packet. Probes are such packets.
		if !e.asked(p.Node) {
			e.findPeer(peerUnanswered, p.Node, p.nextHop().String()+" answers on dev "+p.Outer.Dev,
				"its neighbour entry has failed", "")
		}
	case state == netstate.NeighPermanent:
		e.findPeer(underlayNeighbour, p.Node, "the neighbour entry of its next hop is learnt, and reachable",
			p.Neighbour.String(), fmt.Sprintf("ip neigh del %s dev %s", p.nextHop(), p.Outer.Dev))
	}
}

// asked reports whether packets were sent to a peer to find out.
func (f Facts) asked(node string) bool {
	return slices.ContainsFunc(f.Probes, func(p Probe) bool { return p.Node == node })
}

// checkOverlaps is about other networks of this machine in the addresses of pods. One in use, as the machine's LAN is, may
// lie in the network as long as it lies in no node's subnet.
func (e *exam) checkOverlaps() {
	for _, i := range e.Interfaces {
		if e.isOurs(i) {
			continue
		}
		vital := len(i.Default) > 0 || slices.ContainsFunc(e.Underlay.Underlays, func(u backend.Underlay) bool { return u.Dev == i.Name })
		for _, p := range i.Addrs {
			network, overlaps := e.overlap(p, vital || i.Running)
			if !overlaps || e.isForeignBridge(p) {
				continue
			}
			command := ""
			if !vital && !i.Running {
				command = fmt.Sprintf("ip addr del %s dev %s", p, i.Name)
			}
			f := e.find(networkOverlap, i.Name, "no address in "+network.String(), p.String(), command)
			if vital {
				f.Fix = "give the pods another Network, or the node of that subnet another one: this machine needs " + i.Name
			}
			if e.passes(network) {
				f.Severity = Risk
			}
		}
	}
}

// passes reports whether packets pass to a peer's subnet: they take its route, and come back.
func (e *exam) passes(to netip.Prefix) bool {
	i := slices.IndexFunc(e.Paths, func(p Path) bool { return p.Subnet == to && p.Hop.Dev == e.wantedDevice(to) })
	return i >= 0 && slices.ContainsFunc(e.Probes, func(p Probe) bool {
		return p.Kind == ProbeLarge && p.OK && to.Contains(p.To)
	})
}

// isOurs reports whether an interface is Twill's, by its mark or by its name.
func (f Facts) isOurs(i netstate.Interface) bool {
	_, ours := f.Have[linkKey(i.Name)]
	return ours || i.Owned || i.Name == f.Bridge || netstate.IsBackendName(i.Name)
}

// isConnected reports whether a route is the kernel's own to a network that the machine is on. It goes with the address, and
// network-overlap is about that.
func (f Facts) isConnected(r Route) bool {
	return !r.Via.IsValid() && r.Type == "" && slices.ContainsFunc(f.Interfaces, func(i netstate.Interface) bool {
		return i.Name == r.Dev && !f.isOurs(i) &&
			slices.ContainsFunc(i.Addrs, func(a netip.Prefix) bool { return a.Masked() == r.Dst })
	})
}

// overlap returns the network of pods that an address of another device lies in. Of a device in use only a node's subnet
// counts: such a network is no pod's, and may lie in the network of pods.
func (e *exam) overlap(addr netip.Prefix, used bool) (netip.Prefix, bool) {
	if used {
		for _, lease := range append([]subnet.Lease{e.Lease.Snapshot.Local}, e.Lease.Snapshot.Peers...) {
			for _, s := range lease.Stacks {
				if s.Subnet.Contains(addr.Addr()) || s.Subnet.Contains(addr.Masked().Addr()) && s.Subnet.Bits() <= addr.Bits() {
					return s.Subnet, true
				}
			}
		}
		return netip.Prefix{}, false
	}
	for _, pool := range e.Lease.Network.Pools {
		if addr.Masked().Overlaps(pool.Network) {
			return pool.Network, true
		}
	}
	return netip.Prefix{}, false
}

// isForeignBridge reports whether an address is the gateway's of this node's subnet, and not Twill's to give, because
// somebody else makes the pods' bridge.
func (e *exam) isForeignBridge(addr netip.Prefix) bool {
	return e.Bridge == "" && slices.ContainsFunc(e.Lease.Snapshot.Local.Stacks, func(s subnet.Stack) bool {
		return addr == netip.PrefixFrom(backend.Gateway(s.Subnet), s.Subnet.Bits())
	})
}

// checkForwarding is about single devices, which ip_forward does not show.
func (e *exam) checkForwarding() {
	if e.Sysctls["net/ipv4/ip_forward"] != "1" {
		return // a finding of its own
	}
	for _, dev := range e.Forwarders() {
		name := "net/ipv4/conf/" + dev + "/forwarding"
		if value, ok := e.Sysctls[name]; ok && value != "1" {
			e.find(deviceForwardingOff, dev, name+" = 1", name+" = "+value, "sysctl -w "+name+"=1")
		}
	}
}

// Forwarders returns the devices through which pods' packets come in.
func (f Facts) Forwarders() []string {
	devs := []string{f.Bridge}
	seen := map[string]bool{f.Bridge: true}
	for _, o := range f.Want.Sorted() {
		if r, ok := o.(netstate.Route); ok && r.Dst.Addr().Is4() && r.Dev != "" && !seen[r.Dev] {
			seen[r.Dev] = true
			devs = append(devs, r.Dev)
		}
	}
	return devs
}

// underlay returns the underlay of a's family.
func (f Facts) underlay(a netip.Addr) (backend.Underlay, bool) {
	return f.Underlay.Underlay(netstate.FamilyOf(a))
}

// linkKey returns the key of a device.
func linkKey(name string) netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: name} }

// wantedDevice returns the device through which a subnet should be reached.
func (f Facts) wantedDevice(subnet netip.Prefix) string {
	if r, ok := f.Want.PeerRoute(subnet); ok {
		return r.Dev
	}
	if u, ok := f.underlay(subnet.Addr()); ok && f.ByUnderlay {
		return u.Dev
	}
	return ""
}

// wrapping is the encapsulation of the packets between this node and a peer.
type wrapping struct {
	name  string // "VXLAN"
	local netip.Addr
	dev   string // of the underlay
	proto string // udp, ipip or ipv6, as nft prints it
	port  int    // UDP, of the peer and of this node
}

// wrapping returns a peer's wrapping; false: its packets are routed as they are.
func (f Facts) wrapping(p Path) (wrapping, bool) {
	o := f.Want[linkKey(f.wantedDevice(p.Subnet))]
	if v, ok := o.(netstate.VXLAN); ok {
		return wrapping{"VXLAN", v.Local, v.Dev, "udp", v.Port}, true
	}
	u, ok := f.underlay(p.Underlay)
	if _, isBridge := o.(netstate.Bridge); o == nil || isBridge || !ok {
		return wrapping{}, false
	}
	if t, ok := o.(netstate.Tunnel); ok {
		proto := "ipip"
		if t.External {
			proto = "ipv6"
		}
		return wrapping{"IPIP", u.Local, u.Dev, proto, 0}, true
	}
	name, port := f.udpBackend(netstate.FamilyOf(p.Underlay))
	return wrapping{name, u.Local, u.Dev, "udp", port}, name != ""
}

// udpBackend returns the name of a backend that sends UDP from a device without an address of its own, and its port:
// that of net-conf.json, or flannel's default.
func (f Facts) udpBackend(family netstate.Family) (name string, port int) {
	var options struct {
		Port, ListenPort, ListenPortV6 int
		Mode                           string
	}
	_ = json.Unmarshal(f.Lease.Network.Options, &options) // the agent reports what is wrong with it
	switch strings.ToLower(f.Lease.Network.Backend) {
	case "udp":
		return "UDP", cmp.Or(options.Port, 8285)
	case "wireguard":
		if family == netstate.IPv6 && cmp.Or(options.Mode, "separate") == "separate" {
			return "WireGuard", cmp.Or(options.ListenPortV6, 51821)
		}
		return "WireGuard", cmp.Or(options.ListenPort, 51820)
	}
	return "", 0
}

// Wrapping returns the protocol of a peer's packets on the underlay, udp, ipip or ipv6, and their UDP port. The
// protocol is empty if they are not wrapped.
func (f Facts) Wrapping(p Path) (proto string, port int) {
	w, _ := f.wrapping(p)
	return w.proto, w.port
}

// FirstPods returns the addresses that come after a bridge's: pods get them.
func FirstPods(bridge netip.Addr) (all []netip.Addr) {
	const some = 16
	for a := bridge; len(all) < some; {
		a = a.Next()
		all = append(all, a)
	}
	return all
}
