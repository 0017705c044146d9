package follow

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/unusual"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

// Way is what an end of probes is on the way out of the cluster.
type Way int

// The ways.
const (
	Inside  Way = iota // a pod
	Gateway            // the next hop of a node's default route, which need not answer
	Outside            // what somebody says can be reached
)

// ToOutside adds what pods of one node are to reach outside of the cluster: addresses, and the node's gateways.
func (n *Network) ToOutside(f doctor.Facts, addrs ...netip.Addr) {
	gateways := f.Gateways()
	if len(gateways) > 0 {
		n.Pods = append(n.Pods, Pod{Place: watch.Place{Host: "gateway"}, Node: "gateway", Way: Gateway, Addrs: gateways})
	} else if len(addrs) == 0 {
		n.Notes = append(n.Notes, f.Node+" has no default route by which pods reach the outside; no --outside says what they are to reach")
	}
	for _, a := range addrs {
		n.Pods = append(n.Pods, OutsideEnd(a))
	}
	n.Masks = Masks(f)
}

// OutsideEnd is an address outside of the cluster.
func OutsideEnd(a netip.Addr) Pod {
	host := "outside " + a.String()
	return Pod{Place: watch.Place{Host: host}, Node: host, Way: Outside, Addrs: []netip.Addr{a}}
}

// Masks returns what Network.Masks is where the facts of nodes are known.
func Masks(nodes ...doctor.Facts) func(node string, src, dst netip.Addr) bool {
	return func(node string, src, dst netip.Addr) bool {
		return slices.ContainsFunc(nodes, func(f doctor.Facts) bool { return f.Node == node && f.Masquerades(src, dst) })
	}
}

// receiver returns where a pod's probes are answered. What is outside answers as it likes.
func (p Pod) receiver() watch.Place {
	if p.Way != Inside {
		return watch.Place{Host: p.Host}
	}
	return p.Place
}

// mask returns the address that the sender's node gives packets to the outside, if it is to.
func (n Network) mask(path []watch.Place, node string, src, dst netip.Addr) (a netip.Addr) {
	i := slices.IndexFunc(path, func(p watch.Place) bool { return p.Host == node && p.Do != nil })
	if i >= 0 && n.Masks != nil && n.Masks(node, src, dst) {
		a, _ = probe.Source(path[i], dst) // without a route there is none
	}
	return a
}

// masks reports whether all packets of a flow that leave for the outside have an address of the host's own.
func (s *seenAt) masks(f locate.Flow) bool {
	return !slices.ContainsFunc(s.Frames, func(frame packet.Sighting) bool {
		seen, ok := f.See(frame)
		ip, _ := frame.Frame.Last("ip")
		return ok && !seen.Back && !seen.IsNeighbour() && frame.Out && !s.has(ip.Src)
	})
}

// translated returns a packet of a flow as it is outside of the sender's node.
func translated(p unusual.Packet, f locate.Flow) unusual.Packet {
	if p.Src == f.Src {
		p.Src = f.Mask
	} else {
		p.Dst = f.Mask
	}
	return p
}

// exit is a node and what is outside of the cluster.
type exit struct {
	node string
	dst  netip.Addr
}

func (n Network) exit(r probe.Result) exit { return exit{n.pod(r.From.Host).Node, r.Dst} }

// knock connects to what is outside and answers no ping. Nobody connects in the name of another, and a node's own connection is
// no pod's: it has another address, and may take another way.
func (n Network) knock(ctx context.Context, lost []probe.Result) []probe.Result {
	var tries []probe.Try
	for _, r := range lost {
		if r.Lost() && !r.OnBehalf && !r.Bound && n.pod(r.To.Host).Way != Inside {
			r.Kind = probe.TCP
			tries = append(tries, r.Try)
		}
	}
	return probe.Send(ctx, tries, probe.Patience)
}

// answered returns the probes that are lost although connections are answered, and what answers. That is no rule of the
// node's own which rejects them: packets are seen to come in.
func (n Network) answered(lost, knocked []probe.Result, seen watch.Record) (still []probe.Result, by map[exit]bool) {
	by = map[exit]bool{}
	for _, r := range knocked {
		x := n.exit(r)
		by[x] = by[x] || r.Err == nil && slices.ContainsFunc(seen.Views, func(v watch.View) bool {
			return v.Host == x.node && slices.ContainsFunc(v.Frames, x.isFrom)
		})
	}
	return slices.DeleteFunc(lost, func(r probe.Result) bool { return by[n.exit(r)] }), by
}

// isFrom reports whether a packet of a connection comes in from what is outside.
func (x exit) isFrom(s packet.Sighting) bool {
	ip, _ := s.Frame.Last("ip")
	_, isTCP := s.Frame.Last("tcp")
	return isTCP && !s.Out && ip.Src == x.dst
}

// excuse takes what answers off the losses, and gateways to which packets left as they should, or that a rule keeps pods from: many
// answer nobody, and pods need not reach them.
func (n Network) excuse(r *Report, followed Report) {
	quiet := map[netip.Addr]bool{}
	for _, l := range r.Losses {
		isQuiet, known := quiet[l.Flow.Dst]
		quiet[l.Flow.Dst] = (l.Unanswered || l.Stopped) && n.isGateway(l.Flow.Dst) && (isQuiet || !known)
	}
	told := map[netip.Addr]bool{}
	r.Losses = slices.DeleteFunc(r.Losses, func(l locate.Loss) bool {
		if dst := l.Flow.Dst; quiet[dst] && !told[dst] {
			told[dst] = true
			r.note(l)
		}
		return quiet[l.Flow.Dst]
	})
	isQuiet := func(x probe.Result) bool { return x.Err != nil && quiet[x.Dst] }
	r.Lost, r.Results = slices.DeleteFunc(r.Lost, isQuiet), slices.DeleteFunc(r.Results, isQuiet)
	for i, x := range r.Results {
		if followed.answered[n.exit(x)] {
			r.Results[i].Err = nil
		}
	}
	r.Lost = slices.DeleteFunc(r.Lost, func(x probe.Result) bool { return followed.answered[n.exit(x)] })
}

// note says once what became of packets to a gateway.
func (r *Report) note(l locate.Loss) {
	text := fmt.Sprintf("the gateway %s answers neither pings nor connections; packets to it are seen at %s", l.Flow.Dst, l.Last)
	if l.Stopped {
		text = fmt.Sprintf("%s keeps pods from the gateway %s: %s; --outside says what else they are to reach", l.Host, l.Flow.Dst, l.By.Text)
	}
	if !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

func (n Network) isGateway(a netip.Addr) bool {
	return slices.ContainsFunc(n.Pods, func(p Pod) bool { return p.Way == Gateway && slices.Contains(p.Addrs, a) })
}
