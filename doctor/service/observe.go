package service

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
)

// Outcome is what came of one connection, or of one exchange of datagrams.
type Outcome string

// The outcomes.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused" // by a TCP reset, or by ICMP's "port unreachable"
	Unreachable Outcome = "unreachable"
	Silent      Outcome = "no answer"
)

// Try is one connection, and what was seen of it.
type Try struct {
	From     netip.AddrPort // the client's
	To       netip.AddrPort
	Outcome  Outcome
	Error    string
	Tracked  netip.AddrPort // the endpoint by the node's connection tracking; not valid: it has none
	Wire     netip.AddrPort // the endpoint that packets were seen on their way to; not valid: none were
	Hosts    []string       // where these were seen, in the path's order
	Answerer netip.AddrPort // who answered the client instead of the address that it asked; not valid: nobody
	Reset    string         // the host that a TCP reset was seen to come from; empty: none
	Drops    []locate.Drop  // of its packets, by the kernel
}

// endpoint returns the one that was chosen.
func (t Try) endpoint() netip.AddrPort {
	if t.Tracked.IsValid() {
		return t.Tracked
	}
	return t.Wire
}

// Socket is what listens in a pod's namespace, as far as it is known.
type Socket struct {
	Known bool             // the namespace could be looked into
	Bound []netip.AddrPort // all that listens on this protocol, in any family
	Full  []netip.AddrPort // of these, those whose queue of connections that the program has to accept is full
}

// Observations are what was seen of all tries.
type Observations struct {
	Tries   []Try
	Hits    []locate.Hit
	Sockets map[netip.AddrPort]Socket // by endpoint
	Watched []string                  // hosts whose rules were traced
	Unread  []string                  // what could not be watched, and why
}

// chooses reports whether the rule sends packets to this endpoint.
func chooses(h locate.Hit, e netip.AddrPort) bool {
	to := h.Effect.To
	return to.Addr().IsValid() && to.Addr() == e.Addr() && (to.Port() == 0 || to.Port() == e.Port())
}

// isOfProxy reports whether the rule is one of kube-proxy's.
func isOfProxy(h locate.Hit) bool {
	o := h.Object
	return o.Table == "kube-proxy" || strings.HasPrefix(o.Chain, "KUBE-") || strings.HasPrefix(o.Target, "KUBE-")
}

// choice returns the rule that sends packets to an endpoint, and the one that led to its chain: the last one, for with
// sessionAffinity only the first connection is led there by chance.
func (o Observations) choice(e netip.AddrPort) (rule, because *locate.Hit) {
	for i, h := range o.Hits {
		if chooses(h, e) {
			rule = &o.Hits[i]
			break
		}
	}
	if rule == nil || rule.Object.Chain == "" {
		return rule, nil
	}
	for i, h := range o.Hits {
		if h.Host == rule.Host && h.Object.Table == rule.Object.Table && h.Object.Target == rule.Object.Chain {
			because = &o.Hits[i]
		}
	}
	return rule, because
}

// stop returns the first rule that stops packets from or to an address; of kube-proxy's or of others.
func (o Observations) stop(ofProxy bool, about netip.Addr) *locate.Hit {
	i := slices.IndexFunc(o.Hits, func(h locate.Hit) bool {
		return h.Stops && isOfProxy(h) == ofProxy && (!h.Src.IsValid() || h.Src == about || h.Dst == about)
	})
	if i < 0 {
		return nil
	}
	return &o.Hits[i]
}

func (o Observations) seesProxy() bool { return slices.ContainsFunc(o.Hits, isOfProxy) }

// listens reports whether something takes connections to the endpoint.
func (s Socket) listens(e netip.AddrPort) bool { return isBound(s.Bound, e) }

// isBound reports whether one of the sockets is bound to the endpoint.
func isBound(all []netip.AddrPort, e netip.AddrPort) bool {
	return slices.ContainsFunc(all, func(b netip.AddrPort) bool {
		return b.Port() == e.Port() && (b.Addr().IsUnspecified() || b.Addr() == e.Addr())
	})
}

// ports lists what listens, for people.
func (s Socket) ports() string {
	var all []string
	for _, b := range s.Bound {
		text := strconv.Itoa(int(b.Port()))
		if !b.Addr().IsUnspecified() {
			text = b.String()
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return shortList(all)
}
