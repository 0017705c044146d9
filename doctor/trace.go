package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Trace is the path of a packet between two pods, and of its reply, over the nodes whose facts are known.
type Trace struct {
	Schema  int    `json:"schema"`
	Src     string `json:"src"`
	Dst     string `json:"dst"`
	Outside bool   `json:"outside,omitempty"` // Dst is outside of the cluster: any answer counts
	Forward []Step `json:"there"`
	Back    []Step `json:"back,omitempty"` // empty if the packet does not arrive
	// Reverse is what this node's rules about network policies deny of connections in the other direction; nil: nothing.
	Reverse *Denial `json:"reverse,omitempty"`
	// Stopped is the step that stops the packet or its reply; nil: nothing that was seen does.
	Stopped *Step     `json:"stopped,omitempty"`
	Probes  Probes    `json:"probes"`         // that were sent from one to the other
	Lost    []Finding `json:"lost"`           // where they are lost, the surest first
	Traffic *Traffic  `json:"live,omitempty"` // with --live: what became of real packets
	// Services is what became of connections to a Service, if the trace is to one; the path is then that to an endpoint.
	Services []service.Report `json:"services,omitempty"`
	Problem  *service.Problem `json:"problem,omitempty"` // why nothing could be connected to
	Unread   []string         `json:"unread,omitempty"`  // what could not be looked at on the nodes, and why
}

// Add adds what became of probes.
func (t *Trace) Add(p Probes, lost Lost) { t.Probes, t.Lost = p, lost.findings() }

// Step is one place on the path of a packet: what decides there, and the entry that it decides by.
type Step struct {
	Node    string `json:"node"`
	Place   string `json:"place"` // route, neighbour, …
	Entry   string `json:"entry"` // that matched
	Verdict string `json:"stops,omitempty"`
	Partial bool   `json:"partial,omitempty"` // it stops only some packets, such as full ones
	Unread  bool   `json:"unread,omitempty"`  // not all that decides here could be looked at, and the rest does not stop it
	Finding string `json:"finding,omitempty"` // its ID
	Fix     string `json:"fix,omitempty"`
	Command string `json:"command,omitempty"` // the finding's
	// Denied is what rules about network policies do not let pass here; nil: they let everything pass.
	Denied *Denial `json:"denied,omitempty"`
}

// stops reports whether the packet ends here.
func (s Step) stops() bool { return s.Verdict != "" && !s.Partial }

// Flow is a packet between two pods, from one node to another or within one.
type Flow struct {
	Src, Dst netip.Addr
	From, To string // nodes
	Reply    bool   // it is the answer to one in the other direction
}

// reverse returns the flow of the reply.
func (f Flow) reverse() Flow { return Flow{f.Dst, f.Src, f.To, f.From, !f.Reply} }

// Follow traces a packet over the facts of its two nodes, which may be the same, and the reply if it arrives.
func Follow(from, to Facts, flow Flow) Trace {
	t := newTrace(flow)
	back := flow.reverse()
	t.unread(from)
	if to.Node != from.Node {
		t.unread(to)
	}
	t.join(&t.Forward, leave(from, flow))
	t.join(&t.Forward, arrive(to, flow))
	t.join(&t.Back, leave(to, back))
	t.join(&t.Back, arrive(from, back))
	return t
}

// FollowHere is Follow if the facts of only one of the nodes are known: what the other would do is left out.
func FollowHere(f Facts, flow Flow) Trace {
	t := newTrace(flow)
	t.unread(f)
	if f.Node == flow.From {
		t.join(&t.Forward, leave(f, flow))
		t.join(&t.Back, arrive(f, flow.reverse()))
	} else {
		t.join(&t.Forward, arrive(f, flow))
		t.join(&t.Back, leave(f, flow.reverse()))
	}
	back := flow.reverse()
	back.Reply = false
	t.Reverse = visit{f, back}.denied()
	return t
}

// Join makes one trace of what two nodes each saw with FollowHere: near is the sender's, far the receiver's. Each has sent
// probes to the other and followed them on its own part of the path.
func Join(near, far Trace) Trace {
	t := Trace{Schema: Schema, Src: near.Src, Dst: near.Dst, Traffic: joinTraffic(near.Traffic, far.Traffic),
		Probes: near.Probes.and(far.Probes), Unread: slices.Concat(near.Unread, far.Unread)}
	t.excuse(near, far)
	slices.SortStableFunc(t.Lost, byLikelihood)
	t.join(&t.Forward, near.Forward)
	t.join(&t.Forward, far.Forward)
	t.join(&t.Back, far.Back)
	t.join(&t.Back, near.Back)
	return t
}

func newTrace(flow Flow) Trace {
	return Trace{Schema: Schema, Src: flow.Src.String(), Dst: flow.Dst.String()}
}

// unread adds what could not be looked at on a node.
func (t *Trace) unread(f Facts) {
	for _, u := range f.Unread {
		t.Unread = append(t.Unread, f.Node+": "+u)
	}
}

// join adds the next steps, unless the packet was stopped before.
func (t *Trace) join(to *[]Step, steps []Step) {
	if t.Stopped != nil {
		return
	}
	*to = append(*to, steps...)
	if n := len(steps); n > 0 && steps[n-1].stops() {
		t.Stopped = &steps[n-1]
	}
}

// Failed reports whether packets do not get through, or did not.
func (t Trace) Failed() bool {
	return t.failsService() || t.failsPath()
}

// failsPath is Failed without what became of connections to a Service.
func (t Trace) failsPath() bool {
	p, s := t.Probes, t.Stopped
	believed := s != nil && (p.Sent == 0 || p.Other || p.OnBehalf && s.Denied != nil)
	return believed || p.Lost+p.Denied > 0 || t.Traffic != nil && t.Traffic.Failed()
}

// HolderOf returns the node whose lease has the address, empty if none has.
func (f Facts) HolderOf(a netip.Addr) string {
	for _, l := range append([]subnet.Lease{f.Lease.Snapshot.Local}, f.Lease.Snapshot.WithEarlier().Peers...) {
		for _, s := range l.Stacks {
			if s.Subnet.Contains(a) {
				return l.Node
			}
		}
	}
	return ""
}

// visit is a packet at one node: what the node knows, and the packet.
type visit struct {
	Facts
	flow Flow
}

// leave returns the packet's path through the node that sends it, up to the first place that stops it.
func leave(f Facts, flow Flow) []Step {
	if flow.From == flow.To {
		return visit{f, flow}.walk(samePlaces)
	}
	return visit{f, flow}.walk(leavePlaces)
}

// arrive returns the packet's path through the node that it is sent to.
func arrive(f Facts, flow Flow) []Step {
	if flow.From == flow.To {
		return nil
	}
	return visit{f, flow}.walk(arrivePlaces)
}

func (v visit) walk(places []place) []Step {
	found := v.relevant()
	var steps []Step
	for _, p := range places {
		s := v.step(p, found)
		if s.Entry != "" {
			steps = append(steps, s)
		}
		if s.stops() {
			return steps
		}
	}
	return steps
}

// step returns what one place does with the packet.
func (v visit) step(p place, found []Finding) Step {
	s := Step{Node: v.Node, Place: p.name}
	switch {
	case p.trials != nil:
		return v.decide(p, s)
	case p.policies:
		return v.isolate(s)
	}
	i := slices.IndexFunc(found, func(x Finding) bool { return slices.Contains(p.kinds, x.kind()) })
	if i < 0 {
		if p.entry != nil {
			s.Entry = p.entry(v)
		}
		return s
	}
	s.Finding, s.Entry, s.Verdict, s.Fix, s.Command = found[i].ID, found[i].evidence(), found[i].Title, found[i].Fix, found[i].Command
	if s.Partial = p.partial != nil && p.partial(v); s.Partial {
		s.Verdict = "some packets: " + s.Verdict
	}
	return s
}

// decide runs the packet through the firewall.
func (v visit) decide(p place, s Step) Step {
	for _, t := range p.trials(v) {
		d := rules.Decide(v.Chains, t.hook, t.packet)
		switch k := t.judge(d); {
		case k != none && d.Stops():
			s.Finding, s.Verdict, s.Fix, s.Command = string(k), catalogue[k].Title, removal(d), removal(d)
			s.Entry = fmt.Sprintf("%s: %s by %s", d.Chain, d.Verdict, d.By())
			return s
		case d.Verdict != rules.Accept:
			s.Entry = fmt.Sprintf("%s: %s by %s", d.Chain, d.Verdict, d.By())
		case s.Entry == "":
			s.Entry = "accept"
		}
	}
	if v.ChainsUnread && s.Entry != "" {
		s.Entry, s.Unread = strings.TrimPrefix(s.Entry+"; not all rules were looked at", "accept; "), true
	}
	return s
}

// relevant leaves out findings about other peers, other pods' interfaces, and the other family.
func (v visit) relevant() []Finding {
	peer := v.flow.To
	if v.Node == v.flow.To {
		peer = v.flow.From
	}
	return slices.DeleteFunc(checkAll(v.Facts), func(x Finding) bool {
		return x.peer != "" && x.peer != peer || x.family != 0 && x.family != v.family() ||
			x.port != "" && x.port != v.portOf(v.flow.Src) && x.port != v.portOf(v.flow.Dst) ||
			x.addrs != nil && !slices.Contains(x.addrs, v.flow.Src) && !slices.Contains(x.addrs, v.flow.Dst)
	})
}

func (v visit) family() netstate.Family { return netstate.FamilyOf(v.flow.Dst) }

// portOf returns the port of a pod of this node, empty if there is none.
func (f Facts) portOf(pod netip.Addr) string {
	i := slices.IndexFunc(f.Pods, func(p Pod) bool { return p.Addr == pod })
	if i < 0 {
		return ""
	}
	return f.Pods[i].Port
}
