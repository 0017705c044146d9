package causes

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// drawRule draws a rule of routing.
func drawRule(d *draw) *cause {
	p, f := d.somewhere(), d.family()
	pref := strconv.Itoa(1 + d.IntN(32764))
	selector := choose(d, "selector", selectors)(d, p, f)
	if d.chance(20) {
		selector = words(selector, choose(d, "second selector", selectors)(d, p, f))
	}
	if d.chance(10) {
		d.seen.note("not", []string{"not"}, 0)
		selector = "not " + selector
	}
	ip := "ip " + f.flag() + " rule"
	c := &cause{place: p.name, tokens: [][]string{{pref}}}
	action := d.pick("action", "table", "table", "table", "blackhole", "prohibit", "unreachable", "main")
	switch action {
	case "main":
		action = "lookup main " + d.pick("suppress", "suppress_prefixlength 0", "suppress_prefixlength 24",
			"suppress_ifgroup 0", "")
	case "table":
		table := strconv.Itoa(100 + d.IntN(900))
		action = "lookup " + table
		c.steps = append(c.steps, d.route(p, f, table))
		c.tokens[0] = append(c.tokens[0], table) // the route there is what loses packets
	}
	c.steps = append(c.steps, add(p.name, ip, words("pref", pref, selector, action)))
	return c
}

// selectors are what rules of routing choose packets by.
var selectors = []option[func(*draw, place, family) string]{
	{"all", func(_ *draw, _ place, _ family) string { return "from all" }},
	{"from", func(d *draw, _ place, f family) string { return "from " + d.subject(f) }},
	{"to", func(d *draw, _ place, f family) string { return "to " + d.subject(f) }},
	{"iif", func(d *draw, p place, _ family) string { return "iif " + d.ofDevice(p, "lo") }},
	{"oif", func(d *draw, p place, _ family) string { return "oif " + d.device(p) }},
	{"fwmark", func(d *draw, _ place, _ family) string {
		return "fwmark " + d.pick("fwmark", "0x4000/0x4000", "0/0xff", "1")
	}},
	{"ipproto", func(d *draw, _ place, _ family) string {
		return "ipproto " + d.pick("ipproto", "tcp", "udp", "icmp", "ipv6-icmp")
	}},
	{"dport", func(d *draw, _ place, _ family) string {
		return "dport " + d.pick("dport", "1024-65534", "8472", "6443")
	}},
	{"sport", func(d *draw, _ place, _ family) string {
		return "sport " + d.pick("sport", "1024-65534", "32768-65534")
	}},
	{"tos", func(d *draw, _ place, _ family) string { return "tos " + d.pick("tos", "0x10", "0x08") }},
}

// drawRoute draws a route that is added or deleted.
func drawRoute(d *draw) *cause {
	p, f := d.somewhere(), d.family()
	if d.pick("route's verb", "add", "add", "add", "delete") == "delete" {
		return d.deletedRoute(p, f)
	}
	s, dst := d.namedRoute(p, f, "")
	return &cause{place: p.name, steps: []step{s}, tokens: [][]string{destinations(dst)}}
}

// destinations are the ways that a destination is printed: a host's without its length.
func destinations(dst string) []string {
	if p, err := netip.ParsePrefix(dst); err == nil && p.IsSingleIP() {
		return []string{dst, p.Addr().String()}
	}
	return []string{dst}
}

// deletedRoute takes a route away that is there.
func (d *draw) deletedRoute(p place, f family) *cause {
	dst := "default"
	if p.node != nil {
		dst = d.pick("deleted route", "default", "own", "peer")
	}
	switch {
	case dst == "own" && p.node != nil:
		dst = p.node.subnet[f].String()
	case dst == "peer" && p.pod != nil:
		dst = d.world.cluster[f].String()
	case dst == "peer":
		dst = d.peer(p.node).subnet[f].String()
	case p.node == nil:
		dst = d.world.segment[f].String()
	}
	ip := "ip " + f.flag() + " route "
	return &cause{place: p.name, tokens: [][]string{{dst}}, steps: []step{{in: p.name, before: ip + "show exact " + dst,
		do: ip + "del " + dst, undo: ip + "replace $OLD"}}}
}

// route is a route of a table.
func (d *draw) route(p place, f family, table string) step {
	s, _ := d.namedRoute(p, f, table)
	return s
}

// namedRoute also returns the destination.
func (d *draw) namedRoute(p place, f family, table string) (step, string) {
	dst := d.destination(f, table)
	typ := d.pick("route type", "unicast", "unicast", "unicast", "blackhole", "blackhole", "prohibit", "unreachable",
		"throw", "local")
	way := ""
	switch typ {
	case "unicast":
		way = d.way(p, f)
	case "local":
		way = "dev lo"
	}
	where := ""
	if table != "" {
		where = "table " + table
	}
	metric := "metric " + strconv.Itoa(1+d.IntN(50)) // before those that are there
	s := add(p.name, "ip "+f.flag()+" route", words(typ, dst, where, metric, way))
	s.undo = words("ip", f.flag(), "route del", typ, dst, where, metric)
	return s, dst
}

// destination chooses what a route is to.
func (d *draw) destination(f family, table string) string {
	options := []string{"pod", "pod", "subnet", "subnet", "half", "cluster", "node", "segment"}
	if table != "" {
		options = append(options, "default", "default", "default")
	}
	switch d.pick("destination of "+map[bool]string{true: "a table", false: "main"}[table != ""], options...) {
	case "pod":
		return netip.PrefixFrom(d.anyPod().addr[f], f.bits()).String()
	case "subnet":
		return d.anyNode().subnet[f].String()
	case "half":
		s := d.anyNode().subnet[f]
		return netip.PrefixFrom(s.Addr(), s.Bits()+1).String()
	case "cluster":
		return d.world.cluster[f].String()
	case "node":
		return netip.PrefixFrom(d.anyNode().addr[f], f.bits()).String()
	case "segment":
		return d.world.segment[f].String()
	}
	return "default"
}

// way chooses where a unicast route leads.
func (d *draw) way(p place, f family) string {
	device := d.device(p)
	way := "dev " + device
	switch d.pick("way", "device", "gateway", "wrong gateway", "loopback", "two gateways") {
	case "two gateways":
		other := d.device(p)
		return fmt.Sprintf("nexthop via %s dev %s onlink nexthop via %s dev %s onlink", d.hop(p, f, device), device,
			d.hop(p, f, other), other)
	case "loopback":
		way = "dev lo"
	case "gateway":
		way = fmt.Sprintf("via %s dev %s onlink", d.hop(p, f, device), device)
	case "wrong gateway":
		nobody := map[family]string{ip4: "192.0.2.7", ip6: "2001:db8::7"}[f]
		way = fmt.Sprintf("via %s dev %s onlink", nobody, device)
	}
	if d.chance(30) {
		way = words(way, choose(d, "route attribute", routeAttributes)(d, p, f))
	}
	return way
}

// hop is somebody behind a device.
func (d *draw) hop(p place, f family, device string) string {
	switch {
	case p.pod != nil:
		return p.node.gateway[f].String()
	case p.node == nil:
		return d.anyNode().addr[f].String()
	case device == uplink && d.pick("hop on the underlay", "router", "peer") == "router":
		return d.world.router[f].String()
	case device == uplink:
		return d.peer(p.node).addr[f].String()
	case slices.Contains([]string{p.node.vtep[ip4], p.node.vtep[ip6]}, device):
		return d.peer(p.node).subnet[f].Addr().String()
	}
	return p.node.pods[d.IntN(len(p.node.pods))].addr[f].String()
}

var routeAttributes = []option[func(*draw, place, family) string]{
	{"mtu", func(d *draw, _ place, _ family) string {
		return "mtu " + d.pick("route mtu", "1400", "600", "lock 1300", "1420")
	}},
	{"advmss", func(*draw, place, family) string { return "advmss 500" }},
	{"initcwnd", func(*draw, place, family) string { return "initcwnd 1" }},
	{"src", func(d *draw, p place, f family) string {
		if p.node == nil {
			return "src " + d.world.router[f].String()
		}
		if p.pod != nil {
			return "src " + p.pod.addr[f].String()
		}
		if d.pick("src of a node", "underlay", "bridge") == "bridge" {
			return "src " + p.node.gateway[f].String()
		}
		return "src " + p.node.addr[f].String()
	}},
	{"hoplimit", func(d *draw, _ place, _ family) string { return "hoplimit " + d.pick("hoplimit", "1", "2", "30") }},
	{"quickack", func(*draw, place, family) string { return "quickack 1" }},
}
