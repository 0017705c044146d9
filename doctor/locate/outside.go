package locate

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/packet"
)

// unmasked returns where the packet left the sender's node for the outside with the sender's own address, although the
// node is to give it its own.
func (j *judgement) unmasked() (left Seen, ok bool) {
	h := j.hosts[j.flow.Exit]
	if !j.flow.Mask.IsValid() {
		return left, false
	}
	for _, s := range h.Seen {
		isRouted := s.SrcMAC == "" || slices.Contains(h.MACs, s.SrcMAC) // what is bridged has the pod's MAC
		if ip, _ := s.Frame.Last("ip"); !s.Back && !s.IsNeighbour() && s.Out && isRouted && ip.Src == j.flow.Src {
			left, ok = s, true
		}
	}
	return left, ok
}

// unmasking returns what keeps the node from masquerading: the rule that accepts the packet where that is done, or has its
// connection not tracked, else that no rule does it.
func (j *judgement) unmasking(s Seen) Object {
	for _, h := range j.hosts[j.flow.Exit].Hits {
		isAccepted := h.Hook == "postrouting" && h.Verdict == "accept" && h.Object.Table == "nat"
		if (isAccepted || h.Verdict == "notrack" || h.Verdict == "ct") && j.concerns(h, false) {
			return h.Object
		}
	}
	return Object{Kind: Rule, Dev: s.Dev, Text: "masquerading of what leaves through " + s.Dev + " is missing",
		Usual: "packets from " + j.flow.Mask.String()}
}

// isGone reports whether the packet has left the sender's node for a host that nobody watches.
func (j *judgement) isGone() bool {
	isPast := slices.Index(j.path, j.at) >= slices.Index(j.path, j.flow.Exit)
	return j.flow.Exit != "" && isPast && !j.back && j.isLeaving() && j.hosts[j.next].Name == ""
}

// written returns the entry that somebody wrote with the MAC that the packet left with, if there is one.
func (j *judgement) written() Object {
	for _, o := range j.hosts[j.at].Unusual {
		if o.Kind == Neighbour && len(j.last.MACs) > 0 && o.MAC == j.last.MACs[0] {
			return o
		}
	}
	return Object{}
}

// deaf returns the next hop on the way to the outside, if the sender's node looks for its MAC in vain, and the route to it.
func (j *judgement) deaf(d Drop) (o, route Object) {
	h := j.hosts[j.flow.Exit]
	if j.flow.Exit == "" || j.at != j.flow.Exit || j.back || j.isLeaving() {
		return o, route
	}
	c, _ := clueOf(d)
	for _, r := range h.Routed {
		hop := r.Object.Via
		if !hop.IsValid() {
			hop = j.flow.Dst
		}
		isAsked := slices.ContainsFunc(h.Seen, func(s Seen) bool { return s.Out && s.Asks == hop })
		isTold := slices.ContainsFunc(h.Seen, func(s Seen) bool { return s.Tells == hop })
		isDropped := len(c.kinds) > 0 && c.kinds[0] == Neighbour
		if !r.Back && !r.Reverse && r.Object.Is("unicast") && (isAsked || isDropped) && !isTold {
			return Object{Kind: Neighbour, Dev: r.Object.Dev, About: netip.PrefixFrom(hop, hop.BitLen()),
				Text: hop.String() + " dev " + r.Object.Dev + " does not answer", Usual: "a neighbour that does"}, r.Object
		}
	}
	return o, route
}

// isEcho reports whether ICMP from or to the outside is an echo of the flow, also where its addresses are translated. Errors,
// which routers send, are none. Of an echo that was cut it is not known.
func (f Flow) isEcho(p packet.Frame) (is, known bool) {
	icmp, ok := p.Last("icmp")
	ip, _ := p.Last("ip")
	if !ok || f.Exit == "" {
		return false, false
	}
	return icmp.Echo == f.Echo, icmp.Echo != "" || !p.IsReply() && !p.IsRequest(ip.Dst)
}
