package doctor

import (
	"net/netip"
	"slices"
	"strings"

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

// otherFamily: it is the other address family that has no underlay; what was written for this one still works.
func otherFamily(f Facts, j Journey) bool {
	return j.Dst.Is4() && strings.Contains(f.UnderlayError, "IPv6") || j.Dst.Is6() && strings.Contains(f.UnderlayError, "IPv4")
}

// isSix: IPv6 forwards through a device that has no address, and the kernel keeps its routes.
func isSix(_ Facts, j Journey) bool { return j.Dst.Is6() }

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
	return ok && ok2 && have.Via == want.Via && have.Outer == want.Outer && have.Dev == want.Dev && have.Blackhole == want.Blackhole
}

// besideDst: a more specific route that does not take this packet.
func besideDst(f Facts, j Journey) bool {
	way := wayOf(f, j).Subnet
	return !slices.ContainsFunc(f.Routes, func(r Route) bool { return r.Dst.Bits() > way.Bits() && r.Dst.Contains(j.Dst) })
}

// routed: what leaves un-encapsulated goes to a next hop that was found when the route was written.
func routed(f Facts, j Journey) bool {
	_, ok := outerOf(f, wayOf(f, j))
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

// relevant leaves out what is about other peers, other pods' interfaces, and addresses of the other family.
func relevant(f Facts, j Journey) []Finding {
	other := j.To
	if f.Node == j.To {
		other = j.From
	}
	return slices.DeleteFunc(checkAll(f), func(x Finding) bool {
		if name, ok := peerOf(f, x.Object); ok {
			return name != other
		}
		if p, ok := addressOf(x); ok && p.Addr().Is4() != j.Dst.Is4() {
			return true
		}
		if x.ID == "pod-unplugged" || x.ID == "pod-link-down" {
			return x.Object != portOf(f, j.Src) && x.Object != portOf(f, j.Dst)
		}
		return false
	})
}

// addressOf is what a finding about a device's missing address expects: "addr 10.244.1.1/24 dev cni0".
func addressOf(x Finding) (netip.Prefix, bool) {
	words := strings.Fields(x.Expected)
	if x.ID != "gateway-address" && x.ID != "vtep-address" || len(words) < 2 {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(words[1])
	return p, err == nil
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
