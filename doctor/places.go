package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// leavePlaces are those of the node that sends, in the order in which a packet comes by them.
func leavePlaces() []place {
	return []place{
		{name: "lease", ids: []string{"no-lease"}, soft: always},
		{name: "underlay", ids: []string{"underlay-missing"}, soft: otherFamily},
		{name: "pod's interface", ids: []string{"pod-unplugged", "pod-link-down"}, entry: func(f Facts, j Journey) string { return portEntry(f, j.Src) }},
		{name: "bridge", ids: []string{"bridge-missing", "bridge-down", "gateway-address"}, entry: bridgeEntry},
		{name: "prerouting rules", rules: podFlow("prerouting", onlyStop("prerouting-dropped"))},
		{name: "forwarding", ids: []string{"ip-forward-off", "device-forwarding-off"}, entry: forwardingEntry},
		{name: "overlay device", ids: []string{"module-missing", "udp-port-taken", "device-foreign", "vtep-missing", "vtep-down"}, entry: overlayEntry},
		{name: "overlay device's address", ids: []string{"vtep-address"}, soft: isSix},
		{name: "peer's record", ids: []string{"duplicate-underlay", "duplicate-mac", "duplicate-subnet", "peer-skipped"}, soft: hasRoute},
		{name: "policy rules", ids: []string{"policy-rule"}},
		{name: "more specific route", ids: []string{"route-shadowed"}, soft: besideDst},
		{name: "route", ids: []string{"route-missing", "route-altered"}, entry: routeEntry, soft: sameWay},
		{name: "forward rules", rules: podFlow("forward", forwardStop)},
		{name: "postrouting rules", rules: podFlow("postrouting", postrouting)},
		{name: "neighbour", ids: []string{"neighbour-missing", "neighbour-altered"}, entry: neighbourEntry},
		{name: "forwarding database", ids: []string{"fdb-missing", "fdb-altered"}, entry: fdbEntry},
		{name: "peer's key", ids: []string{"peer-missing", "peer-altered"}, entry: peerEntry},
		{name: "agent", ids: []string{"runner-down"}, entry: runnerEntry},
		{name: "MTU", ids: []string{"vtep-mtu", "bridge-mtu", "underlay-mtu"}, entry: mtuEntry, soft: always},
		{name: "output rules", rules: tunnelFlow(0)},
		{name: "way to the node", ids: []string{"underlay-unreachable"}, entry: outerEntry, soft: routed},
		{name: "neighbour on the underlay", ids: []string{"underlay-neighbour"}, entry: func(f Facts, j Journey) string { return wayOf(f, j).Neighbour }},
		{name: "between the nodes", ids: []string{"peer-unanswered", "udp-sent-unanswered", "udp-not-sent"}},
		{name: "some packets between the nodes", ids: []string{"path-mtu", "tcp-lost"}, soft: always},
	}
}

func arrivePlaces() []place {
	return []place{
		{name: "node's address", ids: []string{"underlay-missing"}, soft: otherFamily},
		{name: "node's address", ids: []string{"underlay-address"}, soft: roams},
		{name: "input rules", rules: tunnelFlow(2)},
		{name: "overlay device", ids: []string{"module-missing", "udp-port-taken", "device-foreign", "vtep-missing", "vtep-down", "vtep-mac", "vtep-altered"}, entry: overlayEntry},
		{name: "agent", ids: []string{"runner-down"}, entry: runnerEntry},
		{name: "reverse path check", ids: []string{"rp-filter"}, soft: always},
		{name: "prerouting rules", rules: podFlow("prerouting", onlyStop("prerouting-dropped"))},
		{name: "forwarding", ids: []string{"ip-forward-off", "device-forwarding-off"}, entry: forwardingEntry},
		{name: "forward rules", rules: podFlow("forward", forwardStop)},
		{name: "postrouting rules", rules: podFlow("postrouting", postrouting)},
		{name: "bridge", ids: []string{"bridge-missing", "bridge-down", "gateway-address"}, entry: bridgeEntry},
		{name: "pod's interface", ids: []string{"pod-unplugged", "pod-link-down"}, entry: func(f Facts, j Journey) string { return portEntry(f, j.Dst) }},
	}
}

func samePlaces() []place {
	return []place{
		{name: "pod's interface", ids: []string{"pod-unplugged", "pod-link-down"}, entry: func(f Facts, j Journey) string { return portEntry(f, j.Src) }},
		{name: "bridge", ids: []string{"bridge-missing", "bridge-down"}, entry: bridgeEntry},
		{name: "bridged packets in forward rules", rules: func(f Facts, j Journey) []flow { return sameNode(f, j.Src, j.Dst) }},
		{name: "other pod's interface", entry: func(f Facts, j Journey) string { return portEntry(f, j.Dst) }},
	}
}

// podFlow is the pod's packet at a hook of the node.
func podFlow(hook string, id func(Decision) string) func(Facts, Journey) []flow {
	return func(f Facts, j Journey) []flow {
		dev := wantedDevice(f, wayOf(f, j).Subnet)
		p := Packet{Src: j.Src, Dst: j.Dst, In: f.Bridge, Out: dev, Proto: "tcp", DPort: 80}
		if f.Node == j.To {
			p.In, p.Out = dev, f.Bridge
		}
		return []flow{{hook, p, "", id}}
	}
}

// tunnelFlow is the encapsulated packet: its two hooks on the way out, or from 2 on those on the way in.
func tunnelFlow(first int) func(Facts, Journey) []flow {
	return func(f Facts, j Journey) []flow {
		all := tunnel(f, wayOf(f, j))
		if len(all) == 0 {
			return nil
		}
		return all[first : first+2]
	}
}

func portEntry(f Facts, pod netip.Addr) string {
	if port := portOf(f, pod); port != "" {
		return fmt.Sprintf("%s at %s, port of %s", pod, port, f.Bridge)
	}
	return ""
}

func bridgeEntry(f Facts, _ Journey) string {
	return text(f.Have[netstate.Key{Kind: netstate.KindLink, Name: f.Bridge}])
}

// text is an object's, empty where there is none.
func text(o netstate.Object) string {
	if o == nil {
		return ""
	}
	return o.String()
}

func forwardingEntry(f Facts, j Journey) string {
	name := "net/ipv4/ip_forward"
	if j.Dst.Is6() {
		name = "net/ipv6/conf/all/forwarding"
	}
	return name + " = " + f.Sysctls[name]
}

// wayOf is the way to the other node.
func wayOf(f Facts, j Journey) Way {
	i := slices.IndexFunc(f.Ways, func(w Way) bool { return w.Subnet.Contains(j.Dst) || w.Subnet.Contains(j.Src) })
	if i < 0 {
		return Way{}
	}
	return f.Ways[i]
}

func routeOf(f Facts, j Journey) (netstate.Route, bool) {
	subnet := wayOf(f, j).Subnet
	if !subnet.IsValid() {
		return netstate.Route{}, false
	}
	r, ok := f.Have[netstate.Route{Dst: subnet, Metric: netstate.DefaultMetric(subnet.Addr())}.Key()].(netstate.Route)
	return r, ok
}

func routeEntry(f Facts, j Journey) string {
	if r, ok := routeOf(f, j); ok {
		return r.String()
	}
	return ""
}

// overlayEntry is the device that wraps packets; empty for packets that are routed.
func overlayEntry(f Facts, j Journey) string {
	if _, ok := outerOf(f, wayOf(f, j)); !ok {
		return ""
	}
	return text(f.Have[netstate.Key{Kind: netstate.KindLink, Name: wantedDevice(f, wayOf(f, j).Subnet)}])
}

func overlayOf(f Facts, j Journey) (netstate.VXLAN, bool) {
	v, ok := f.Have[netstate.Key{Kind: netstate.KindLink, Name: wantedDevice(f, wayOf(f, j).Subnet)}].(netstate.VXLAN)
	return v, ok
}

func neighbourOf(f Facts, j Journey) (netstate.Neigh, bool) {
	v, ok := overlayOf(f, j)
	if !ok {
		return netstate.Neigh{}, false
	}
	n, ok := f.Have[netstate.Neigh{Dev: v.Name, IP: wayOf(f, j).Subnet.Addr()}.Key()].(netstate.Neigh)
	return n, ok
}

func neighbourEntry(f Facts, j Journey) string {
	if n, ok := neighbourOf(f, j); ok {
		return n.String()
	}
	return ""
}

func fdbEntry(f Facts, j Journey) string {
	n, ok := neighbourOf(f, j)
	if !ok {
		return ""
	}
	return text(f.Have[netstate.FDB{Dev: n.Dev, MAC: n.MAC, Dst: wayOf(f, j).Underlay}.Key()])
}

// roams: WireGuard answers a peer at the address that its last packet came from, whatever the peer published.
func roams(f Facts, _ Journey) bool { return strings.EqualFold(f.Lease.Network.Backend, "wireguard") }

// peerEntry is the other node as the kernel's WireGuard has it.
func peerEntry(f Facts, j Journey) string {
	subnet := wayOf(f, j).Subnet
	for _, o := range f.Have.Sorted() {
		if p, ok := o.(netstate.Peer); ok && subnet.IsValid() && slices.Contains(p.Allowed[:], subnet) {
			return p.String()
		}
	}
	return ""
}

// runnerEntry is the agent, where it moves the packets itself.
func runnerEntry(f Facts, _ Journey) string {
	if f.movedBy() != "agent" {
		return ""
	}
	entry := fmt.Sprintf("process %d moves the packets", f.Agent.PID)
	if r := f.Agent.Runner; r != nil && r.Says != "" {
		entry = fmt.Sprintf("process %d: %s", f.Agent.PID, r.Says)
	}
	return entry
}

func mtuEntry(f Facts, _ Journey) string { return fmt.Sprintf("%d bytes for pods", f.PodMTU) }

func outerEntry(f Facts, j Journey) string {
	w := wayOf(f, j)
	if !w.Underlay.IsValid() {
		return ""
	}
	return fmt.Sprintf("%s %s", w.Underlay, w.Outer)
}
