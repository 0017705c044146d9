package netstatetest

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// RunTunnels is the suite of what not every kernel has: IP-in-IP devices.
func RunTunnels(t *testing.T, harness func(t *testing.T) Harness) {
	runCases(t, harness, tunnelDevice.cases())
	runCases(t, harness, tunnelDevice6.cases())
	runCases(t, harness, []testCase{
		{"both families' tunnels", func(h *host) { h.roundTrip(merge(tunnelDevice.state, tunnelDevice6.state)) }},
		{"a second tunnel for IPv6", func(h *host) {
			h.underlay()
			h.run("ip link add other type ip6tnl mode any external")
			h.refuses(tunnelDevice6.link(), "another ip6_tunnel device on this host takes all packets", "+ link flannel-v6.ipip")
			h.run("ip link del other")
			h.apply(tunnelDevice6.state)
		}},
		{"someone else's IPv6 tunnel", func(h *host) {
			h.underlay()
			h.run("ip link add other type ip6tnl mode any external", "ip link set other up",
				"ip route add fc00:0:0:7::/64 encap ip6 src 2001:db8::1 dst 2001:db8::7 dev other")
			h.clean(netstate.State{})
		}},
		{"an IPv6 route between underlay and tunnel", func(h *host) {
			h.underlay()
			direct := merge(tunnelDevice6.state, v6.direct(2, v6.underlay(2), "u0"))
			for range 2 {
				h.apply(tunnelDevice6.state)
				h.apply(direct)
			}
		}},
	})
}

func runCases(t *testing.T, harness func(t *testing.T) Harness, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(&host{T: t, Harness: harness(t)}) })
	}
}

// device is a kind of overlay device that has no entries but addresses and routes, with a state around it.
type device struct {
	name   string
	drifts map[string]drift // beside those of every device
	state  netstate.State
	line   string // of the link, as plans print it
	route  string // of the route to node 2
	shrunk netstate.Object
	other  netstate.Object // what cannot be had in place, nil if there is no such thing
}

var tunDevice = device{
	name: "flannel0",
	state: netstate.NewState(
		netstate.Tun{Name: "flannel0", MTU: 1452, Up: true, Marked: true},
		netstate.Addr{Dev: "flannel0", Prefix: netip.MustParsePrefix("10.244.1.0/32")},
		netstate.Addr{Dev: "flannel0", Prefix: netip.MustParsePrefix("fc00:0:0:1::/128"), NoDAD: true},
		netstate.Sysctl{Name: "net/ipv4/conf/flannel0/rp_filter", Value: "2"},
		v4.through(2, "flannel0"), v6.through(2, "flannel0")),
	line:   "link flannel0 tun mtu 1452 up",
	route:  "route 10.244.2.0/24 dev flannel0",
	shrunk: netstate.Tun{Name: "flannel0", MTU: 1400, Up: true, Marked: true},
}

// through is the route to a peer without a gateway.
func (s stack) through(node int, dev string) netstate.Route {
	r := s.route(node, s.underlay(node), dev, false)
	r.Via = netip.Addr{}
	return r
}

var tunnelDevice = device{
	name: "flannel.ipip",
	state: netstate.NewState(
		netstate.Tunnel{Name: "flannel.ipip", Local: v4.underlay(1), MTU: 1480, Up: true, Marked: true},
		netstate.Addr{Dev: "flannel.ipip", Prefix: netip.MustParsePrefix("10.244.1.0/32")},
		netstate.Sysctl{Name: "net/ipv4/conf/flannel.ipip/rp_filter", Value: "2"},
		v4.route(2, v4.underlay(2), "flannel.ipip", true)),
	line:   "link flannel.ipip ipip local 192.0.2.1 mtu 1480 up",
	route:  "route 10.244.2.0/24 via 192.0.2.2 dev flannel.ipip onlink",
	shrunk: netstate.Tunnel{Name: "flannel.ipip", Local: v4.underlay(1), MTU: 1400, Up: true, Marked: true},
	other:  netstate.Tunnel{Name: "flannel.ipip", Local: v4.across(1), MTU: 1480, Up: true, Marked: true},
}

var tunnelDevice6 = device{
	name: "flannel-v6.ipip",
	state: netstate.NewState(
		netstate.Tunnel{Name: "flannel-v6.ipip", External: true, MTU: 1460, Up: true, Marked: true},
		netstate.Addr{Dev: "flannel-v6.ipip", Prefix: netip.MustParsePrefix("fc00:0:0:1::/128")},
		netstate.Sysctl{Name: "net/ipv6/conf/flannel-v6.ipip/accept_ra", Value: "0"},
		v6.encap(2, "flannel-v6.ipip"), v6.encap(3, "flannel-v6.ipip")),
	line:   "link flannel-v6.ipip ip6tnl external mtu 1460 up",
	route:  encap6,
	shrunk: netstate.Tunnel{Name: "flannel-v6.ipip", External: true, MTU: 1400, Up: true, Marked: true},
	drifts: map[string]drift{
		"destination": {commands: "ip route replace fc00:0:0:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::9 dev DEV proto 116", plan: was(encap6, "dst 2001:db8::2", "dst 2001:db8::9")},
		"source":      {commands: "ip route replace fc00:0:0:2::/64 encap ip6 src 2001:db8::9 dst 2001:db8::2 dev DEV proto 116", plan: was(encap6, "src 2001:db8::1", "src 2001:db8::9")},
		"hop limit": {commands: "ip route replace fc00:0:0:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 hoplimit 7 dev DEV proto 116",
			plan: "~ " + encap6 + " (was " + encap6 + " hoplimit 0x07)"},
		"nothing around packets": {commands: "ip route replace fc00:0:0:2::/64 dev DEV proto 116",
			plan: was(encap6, "encap ip6 src 2001:db8::1 dst 2001:db8::2 ", "")},
	},
}

const encap6 = "route fc00:0:0:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev flannel-v6.ipip"

// encap is the route to a peer that says what is around packets.
func (s stack) encap(node int, dev string) netstate.Route {
	r := s.route(node, s.underlay(node), dev, false)
	r.Outer = s.underlay(1)
	return r
}

// link is the device without what stands on it.
func (d device) link() netstate.State {
	key := netstate.Key{Kind: netstate.KindLink, Name: d.name}
	return netstate.NewState(d.state[key])
}

func (d device) cases() []testCase {
	cases := []testCase{
		{d.name + " round trip", func(h *host) { h.roundTrip(d.state) }},
		{d.name + " deleted", d.deleted},
		{d.name + " down", func(h *host) {
			d.up(h)
			h.run("ip link set " + d.name + " down")
			h.settle(d.state)
		}},
		{d.name + " keeps its index", d.kept},
		{d.name + " is a bridge", func(h *host) { h.otherType(d.state, "ip link add "+d.name+" type bridge") }},
		{d.name + " over vxlan", func(h *host) { // another backend takes over, and back
			h.underlay()
			h.settle(merge(v4.overlay(), v6.overlay()))
			h.settle(d.state)
			h.settle(merge(v4.overlay(), v6.overlay()))
		}},
	}
	all := map[string]drift{
		"mtu":           {commands: "ip link set DEV mtu 1300", plan: "~ " + d.line + " (was " + mtu1300(d.line) + ")"},
		"alias":         {commands: "ip link set DEV alias mine", plan: "~ " + d.line + " (was " + d.line + " unmarked)"},
		"addr added":    {commands: "ip addr add 10.9.9.9/24 dev DEV", plan: "- addr 10.9.9.9/24 dev DEV"},
		"route deleted": {commands: "ip route del " + strings.Fields(d.route)[1], plan: "+ " + d.route},
		"route altered": {commands: "ip " + strings.Replace(d.route, "route", "route replace", 1) + " proto boot",
			plan: "~ " + d.route + " (was " + d.route + " proto 3)"},
	}
	maps.Copy(all, d.drifts)
	for name, f := range all {
		cases = append(cases, testCase{d.name + " " + name, func(h *host) {
			d.up(h)
			h.hintsWithin(polled, strings.Split(strings.ReplaceAll(f.commands, "DEV", d.name), "; ")...)
			h.plan(d.state, strings.ReplaceAll(f.plan, "DEV", d.name))
			h.apply(d.state)
		}})
	}
	if d.other != nil {
		cases = append(cases, testCase{d.name + " made anew", d.anew})
	}
	return cases
}

func mtu1300(line string) string {
	words := strings.Fields(line)
	for i := range words {
		if words[i] == "mtu" {
			words[i+1] = "1300"
		}
	}
	return strings.Join(words, " ")
}

func (d device) up(h *host) {
	h.Helper()
	h.underlay()
	h.apply(d.state)
}

func (d device) deleted(h *host) {
	d.up(h)
	h.run("ip link del " + d.name)
	if got := len(h.diff(d.state)); got != len(d.state) {
		h.Errorf("%d changes after the device was deleted, want all of %d objects", got, len(d.state))
	}
	h.settle(d.state)
}

// kept: the MTU is changed in place.
func (d device) kept(h *host) {
	d.up(h)
	before := h.Index(d.name)
	h.settle(merge(d.state, netstate.NewState(d.shrunk)))
	if after := h.Index(d.name); after != before {
		h.Errorf("the index was %d and is %d", before, after)
	}
}

func (d device) anew(h *host) {
	d.up(h)
	before := h.Index(d.name)
	h.settle(merge(d.state, netstate.NewState(d.other)))
	if after := h.Index(d.name); after == before {
		h.Errorf("the index is still %d", before)
	}
}
