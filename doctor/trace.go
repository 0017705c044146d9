package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Step is one place on the way of a packet: what decides there, and the entry that it decides by.
type Step struct {
	Node    string `json:"node"`
	Place   string `json:"place"` // route, neighbour, …
	Entry   string `json:"entry"` // that matched
	Stops   string `json:"stops,omitempty"`
	Finding string `json:"finding,omitempty"` // the id, when the packet stops here
	Fix     string `json:"fix,omitempty"`
}

// Journey is a packet between two pods: from one of this cluster's nodes to another, or within one.
type Journey struct {
	Src, Dst netip.Addr
	From, To string // nodes
}

// Back is the reply's.
func (j Journey) Back() Journey { return Journey{j.Dst, j.Src, j.To, j.From} }

// place is where findings of these ids stop a packet, and how to show what decides when none does.
type place struct {
	name  string
	ids   []string
	entry func(Facts, Journey) string
	rules func(Facts, Journey) []flow // that the packet has to pass
	// soft says whether what is found there stops only some packets, such as full ones. Nil: it stops all.
	soft func(Facts, Journey) bool
}

// Leave is the packet's way through the node that sends it, up to the first place that stops it.
func Leave(f Facts, j Journey) []Step {
	if j.From == j.To {
		return walk(f, j, samePlaces())
	}
	return walk(f, j, leavePlaces())
}

// Arrive is the packet's way through the node that it is sent to.
func Arrive(f Facts, j Journey) []Step {
	if j.From == j.To {
		return nil
	}
	return walk(f, j, arrivePlaces())
}

// soft begins what stops only some packets.
const soft = "some packets: "

func walk(f Facts, j Journey, places []place) []Step {
	found := relevant(f, j)
	var steps []Step
	for _, p := range places {
		s, stopped := p.step(f, j, found)
		if s.Entry != "" {
			steps = append(steps, s)
		}
		if stopped && !p.isSoft(f, j) {
			return steps
		}
	}
	return steps
}

// step is what one place does with the packet.
func (p place) step(f Facts, j Journey, found []Finding) (s Step, stopped bool) {
	s = Step{Node: f.Node, Place: p.name}
	if p.rules != nil {
		return p.decide(f, j, s)
	}
	i := slices.IndexFunc(found, func(x Finding) bool { return slices.Contains(p.ids, x.ID) })
	if i < 0 {
		if p.entry != nil {
			s.Entry = p.entry(f, j)
		}
		return s, false
	}
	s.Finding, s.Entry, s.Stops, s.Fix = found[i].ID, found[i].line(), found[i].Title, found[i].Fix
	if p.isSoft(f, j) {
		s.Stops = soft + s.Stops
	}
	return s, true
}

func (p place) isSoft(f Facts, j Journey) bool { return p.soft != nil && p.soft(f, j) }

func always(Facts, Journey) bool { return true }

// hasRoute: what a record says that this node refuses does not matter as long as the kernel still has the way.
func hasRoute(f Facts, j Journey) bool {
	for _, o := range f.Have {
		if r, ok := o.(netstate.Route); ok && r.Dst.Contains(j.Dst) && !r.Blackhole {
			return true
		}
	}
	return false
}

// sameWay: a route that was altered may still lead where it should.
func sameWay(f Facts, j Journey) bool {
	have, ok := routeOf(f, j)
	want, ok2 := f.Want[have.Key()].(netstate.Route)
	return ok && ok2 && have.Via == want.Via && have.Dev == want.Dev && have.Blackhole == want.Blackhole
}

// besideDst: a more specific route that does not take this packet.
func besideDst(f Facts, j Journey) bool {
	way := wayOf(f, j).Subnet
	return !slices.ContainsFunc(f.Routes, func(r Route) bool { return r.Dst.Bits() > way.Bits() && r.Dst.Contains(j.Dst) })
}

// routed: what leaves un-encapsulated goes to a next hop that was found when the route was written.
func routed(f Facts, j Journey) bool {
	_, ok := overlayOf(f, j)
	return !ok
}

// decide runs the packet itself through the firewall.
func (p place) decide(f Facts, j Journey, s Step) (Step, bool) {
	for _, w := range p.rules(f, j) {
		d := Decide(f.Chains, w.hook, w.Packet)
		switch id := w.id(d); {
		case id != "" && d.Stops():
			k, _ := KindOf(id)
			s.Finding, s.Entry, s.Stops, s.Fix = id, d.Chain+": "+d.Verdict+" by "+d.By, k.Title, removal(d)
			return s, true
		case d.Verdict != "accept":
			s.Entry = d.Chain + ": " + d.Verdict + " by " + d.By
		case s.Entry == "":
			s.Entry = "accept"
		}
	}
	return s, false
}

// relevant leaves out what is about other peers, and about other pods' interfaces.
func relevant(f Facts, j Journey) []Finding {
	other := j.To
	if f.Node == j.To {
		other = j.From
	}
	return slices.DeleteFunc(checkAll(f), func(x Finding) bool {
		if name, ok := peerOf(f, x.Object); ok {
			return name != other
		}
		if x.ID == "pod-unplugged" || x.ID == "pod-link-down" {
			return x.Object != portOf(f, j.Src) && x.Object != portOf(f, j.Dst)
		}
		return false
	})
}

func peerOf(f Facts, object string) (string, bool) {
	for _, p := range f.Lease.Snapshot.Peers {
		if object == "peer "+p.Node {
			return p.Node, true
		}
	}
	return "", false
}

func portOf(f Facts, pod netip.Addr) string {
	for _, p := range f.Pods {
		if p.Addr == pod {
			return p.Port
		}
	}
	return ""
}

func leavePlaces() []place {
	return []place{
		{name: "lease", ids: []string{"no-lease"}, soft: always},
		{name: "underlay", ids: []string{"underlay-missing"}},
		{name: "pod's interface", ids: []string{"pod-unplugged", "pod-link-down"}, entry: func(f Facts, j Journey) string { return portEntry(f, j.Src) }},
		{name: "bridge", ids: []string{"bridge-missing", "bridge-down", "gateway-address"}, entry: bridgeEntry},
		{name: "prerouting rules", rules: podFlow("prerouting", onlyStop("prerouting-dropped"))},
		{name: "forwarding", ids: []string{"ip-forward-off", "device-forwarding-off"}, entry: forwardingEntry},
		{name: "overlay device", ids: []string{"udp-port-taken", "device-foreign", "vtep-missing", "vtep-down", "vtep-address"}, entry: overlayEntry},
		{name: "peer's record", ids: []string{"duplicate-underlay", "duplicate-mac", "duplicate-subnet", "peer-skipped"}, soft: hasRoute},
		{name: "policy rules", ids: []string{"policy-rule"}},
		{name: "more specific route", ids: []string{"route-shadowed"}, soft: besideDst},
		{name: "route", ids: []string{"route-missing", "route-altered"}, entry: routeEntry, soft: sameWay},
		{name: "forward rules", rules: podFlow("forward", forwardStop)},
		{name: "postrouting rules", rules: podFlow("postrouting", postrouting)},
		{name: "neighbour", ids: []string{"neighbour-missing", "neighbour-altered"}, entry: neighbourEntry},
		{name: "forwarding database", ids: []string{"fdb-missing", "fdb-altered"}, entry: fdbEntry},
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
		{name: "node's address", ids: []string{"underlay-missing", "underlay-address"}},
		{name: "input rules", rules: tunnelFlow(2)},
		{name: "overlay device", ids: []string{"udp-port-taken", "device-foreign", "vtep-missing", "vtep-down", "vtep-mac", "vtep-altered"}, entry: overlayEntry},
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

// overlayEntry is the VXLAN device; empty for packets that are routed.
func overlayEntry(f Facts, j Journey) string {
	v, ok := overlayOf(f, j)
	if !ok {
		return ""
	}
	return v.String()
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

func mtuEntry(f Facts, _ Journey) string { return fmt.Sprintf("%d bytes for pods", f.PodMTU) }

func outerEntry(f Facts, j Journey) string {
	w := wayOf(f, j)
	if !w.Underlay.IsValid() {
		return ""
	}
	return fmt.Sprintf("%s %s", w.Underlay, w.Outer)
}
