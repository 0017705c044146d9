package netstatetest

import "github.com/twill-net/twill/netstate"

// spreadNode is node() with metrics that spread the routes to peers.
func spreadNode() netstate.State {
	state := netstate.State{}
	for _, o := range node() {
		if r, ok := o.(netstate.Route); ok && !r.Blackhole && r.Protocol == netstate.Protocol {
			r.Metric = netstate.SpreadMetric(r.Dst)
			o = r
		}
		state.Add(o)
	}
	return state
}

// spread: the routes of other metrics are there before the old ones go, in both directions.
func spread(h *host) {
	h.underlay()
	h.apply(node())
	for _, want := range []netstate.State{spreadNode(), node()} {
		h.slots(want, "+ route 10.244.2.0/24", "+ route 10.244.3.0/24", "+ route 10.244.4.0/24",
			"- route 10.244.4.0/24", "- route 10.244.3.0/24", "- route 10.244.2.0/24")
		h.apply(want)
	}
}

// preferred: where a route without a metric would be, a foreign one cuts off the peer. Another metric is an
// administrator's choice.
func preferred(h *host) {
	h.underlay()
	want := spreadNode()
	h.apply(want)
	h.run("ip route add 10.244.2.0/24 via 192.0.2.9 dev u0 metric 7")
	h.plan(want)
	h.hints("ip route add blackhole 10.244.3.0/24")
	h.hints("ip route add 10.244.4.0/24 via 192.0.2.9 dev u0 proto static")
	h.plan(want, "- route 10.244.4.0/24 via 192.0.2.9 dev u0 proto 4", "- route blackhole 10.244.3.0/24 proto 3")
	h.apply(want)
	h.hints("ip route del 10.244.2.0/24 via 10.244.2.0 dev flannel.1")
	h.slots(want, "+ route 10.244.2.0/24")
	h.apply(want)
}
