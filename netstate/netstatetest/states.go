package netstatetest

import (
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// stack is one address family of the test cluster: node 1 is this host, the others are peers.
type stack struct {
	device string // the VTEP
	subnet string // of node %d
	peer   string // underlay address of node %d
	far    string // the same behind u1
	mtu    int
	sysctl netstate.Sysctl
}

var (
	v4 = stack{"flannel.1", "10.244.%d.0/24", "192.0.2.%d", "198.51.100.%d", 1450,
		netstate.Sysctl{Name: "net/ipv4/conf/flannel.1/rp_filter", Value: "2"}}
	v6 = stack{"flannel-v6.1", "fc00:0:0:%d::/64", "2001:db8::%d", "2001:db8:1::%d", 1430,
		netstate.Sysctl{Name: "net/ipv6/conf/flannel-v6.1/accept_ra", Value: "0"}}
)

func (s stack) prefix(node int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(s.subnet, node))
}

func (s stack) underlay(node int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(s.peer, node)) }

func (s stack) across(node int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(s.far, node)) }

func (s stack) mac(node int) netstate.MAC {
	mac := netstate.MAC{0x02, 0, 0, 0, 4, byte(node)}
	if s == v6 {
		mac[4] = 6
	}
	return mac
}

func (s stack) link() netstate.VXLAN {
	return netstate.VXLAN{Name: s.device, VNI: 1, Port: 8472, Dev: "u0", Local: s.underlay(1), MTU: s.mtu, MAC: s.mac(1),
		Up: true, Marked: true}
}

// vtep is a VXLAN device with all that it needs itself.
func (s stack) vtep() netstate.State {
	return netstate.NewState(s.link(), netstate.Addr{Dev: s.device, Prefix: netstate.Host(s.prefix(1).Addr())}, s.sysctl)
}

// tunnel is the path to a peer through the VTEP.
func (s stack) tunnel(node int) netstate.State {
	gateway := s.prefix(node).Addr()
	return netstate.NewState(
		netstate.Neigh{Dev: s.device, IP: gateway, MAC: s.mac(node)},
		netstate.FDB{Dev: s.device, MAC: s.mac(node), Dst: s.underlay(node)},
		s.route(node, gateway, s.device, true),
	)
}

// direct is the path to a peer on the same link as dev.
func (s stack) direct(node int, via netip.Addr, dev string) netstate.State {
	return netstate.NewState(s.route(node, via, dev, false))
}

func (s stack) route(node int, via netip.Addr, dev string, onlink bool) netstate.Route {
	return netstate.Route{Dst: s.prefix(node), Via: via, Dev: dev, Metric: netstate.DefaultMetric(via), Onlink: onlink,
		Protocol: netstate.Protocol}
}

func (s stack) blackhole() netstate.State {
	return netstate.NewState(netstate.Route{Dst: s.prefix(1), Metric: 4096, Blackhole: true, Protocol: netstate.Protocol})
}

// overlay is a VTEP and the tunnels to nodes 2 and 3.
func (s stack) overlay() netstate.State { return merge(s.vtep(), s.tunnel(2), s.tunnel(3)) }

// bridge is the pods' bridge with the gateways of both families.
func bridge() netstate.State {
	return netstate.NewState(
		netstate.Bridge{Name: "cni0", MTU: 1430, MAC: netstate.MAC{0x0a, 0x58, 10, 244, 1, 1}, Up: true, Marked: true},
		netstate.Addr{Dev: "cni0", Prefix: netip.MustParsePrefix("10.244.1.1/24")},
		netstate.Addr{Dev: "cni0", Prefix: netip.MustParsePrefix("fc00:0:0:1::1/64"), NoDAD: true},
		netstate.ConnectedRoute("cni0", netip.MustParsePrefix("10.244.1.1/24")),
		netstate.ConnectedRoute("cni0", netip.MustParsePrefix("fc00:0:0:1::1/64")),
		netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		netstate.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
	)
}

// node is all of it: a dual-stack node with tunnels to 2 and 3, a direct route to 4, a blackhole for its own.
func node() netstate.State {
	state := bridge()
	for _, s := range []stack{v4, v6} {
		state = merge(state, s.overlay(), s.direct(4, s.underlay(4), "u0"), s.blackhole())
	}
	return state
}

func merge(states ...netstate.State) netstate.State {
	all := netstate.State{}
	for _, s := range states {
		all.Merge(s)
	}
	return all
}

func roundTrips() []testCase {
	states := map[string]func(s stack) netstate.State{
		"vxlan":         stack.overlay,
		"DirectRouting": func(s stack) netstate.State { return merge(s.overlay(), s.direct(4, s.underlay(4), "u0")) },
		"host-gw": func(s stack) netstate.State {
			return merge(s.direct(2, s.underlay(2), "u0"), s.direct(3, s.across(3), "u1"), s.blackhole())
		},
		"a peer whose packets are smaller": func(s stack) netstate.State {
			tunnel, direct := s.route(2, s.prefix(2).Addr(), s.device, true), s.route(3, s.underlay(3), "u0", false)
			tunnel.MTU, direct.MTU = 1300, 1400
			return merge(s.overlay(), netstate.NewState(tunnel, direct))
		},
		"gbp, learning, another port": func(s stack) netstate.State {
			l := s.link()
			l.GBP, l.Learning, l.Port, l.VNI = true, true, 4789, 4096
			return merge(s.overlay(), netstate.NewState(l))
		},
		"down": func(s stack) netstate.State {
			l := s.link()
			l.Up = false
			return netstate.NewState(l)
		},
	}
	cases := []testCase{{"everything", func(h *host) { h.roundTrip(node()) }}}
	for name, f := range states {
		cases = append(cases,
			testCase{name + "/v4", func(h *host) { h.roundTrip(f(v4)) }},
			testCase{name + "/v6", func(h *host) { h.roundTrip(f(v6)) }},
			testCase{name + "/dual", func(h *host) { h.roundTrip(merge(f(v4), f(v6))) }})
	}
	return cases
}

// roundTrip brings a state up and down again: one plan each, and then none.
func (h *host) roundTrip(want netstate.State) {
	h.underlay()
	h.apply(want)
	up := h.diff(netstate.State{})
	h.apply(netstate.State{})
	if len(up) == 0 {
		h.Fatal("nothing was to be deleted: the state was never there")
	}
	h.apply(want) // and once more, onto what a removal leaves
}
