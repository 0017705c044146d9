package connect

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

// pairs are the addresses between which rules are traced: the client or, after masquerading, a node, and the Service
// or an endpoint.
func (p Places) pairs(t service.Target) (all []ruletrace.Pair) {
	var near, far []netip.Addr
	near = append(near, p.Client.Addrs...)
	near = append(near, p.Nodes[p.Client.Node].Addrs...)
	if t.Node != p.Client.Node {
		near = append(near, p.Nodes[t.Node].Addrs...)
	}
	if t.To.IsValid() {
		far = append(far, t.To.Addr())
	}
	for _, e := range t.Endpoints {
		far = append(far, e.To.Addr())
	}
	for _, b := range far {
		for _, a := range near {
			if a.Is4() == b.Is4() && a != b && len(all) < maxPairs {
				all = append(all, ruletrace.Pair{A: a, B: b})
			}
		}
	}
	return all
}

// find notes where packets of a connection were seen. A node that masquerades the client keeps its port if it can; then
// only endpoints that are known tell that it is this connection.
func (p Places) find(seen []watch.View, t *service.Try, target service.Target) {
	for _, v := range seen {
		for _, s := range v.Frames {
			src, dst, ok := s.Frame.Ends()
			switch {
			case !ok:
			case src == t.From && dst != t.To, src.Port() == t.From.Port() && isEndpoint(dst, t, target):
				t.Wire = dst
				if !slices.Contains(t.Hosts, v.Host) {
					t.Hosts = append(t.Hosts, v.Host)
				}
			case dst.Port() != t.From.Port():
			case v.Host == p.Client.Host && !s.Out && dst == t.From && src != t.To:
				t.Answerer = src
			case s.Out && s.Frame.IsReset() && (src == t.Wire || isEndpoint(src, t, target)):
				t.Reset = v.Host // the pod's comes last
			}
		}
	}
}

// drops notes which packets of a connection, or of its answer, the kernel dropped.
func (p Places) drops(seen []watch.View, t *service.Try, target service.Target) {
	for _, v := range seen {
		for _, d := range v.Drops {
			src, dst, ok := packet.DecodeStart(d.Packet).Ends()
			there := ok && (src == t.From || src.Port() == t.From.Port() && isEndpoint(dst, t, target))
			back := ok && dst.Port() == t.From.Port() && (src == t.To || isEndpoint(src, t, target))
			if (there || back) && !watch.IsHarmless(d) {
				dropped := watch.Explain(d)
				dropped.Back = back
				t.Drops = append(t.Drops, dropped)
			}
		}
	}
}

// isEndpoint reports whether packets of a connection are on their way to this endpoint: one that the API server has,
// or the one that connection tracking has.
func isEndpoint(a netip.AddrPort, t *service.Try, target service.Target) bool {
	return a == t.Tracked || slices.ContainsFunc(target.Endpoints, func(e service.Endpoint) bool { return e.To == a })
}
