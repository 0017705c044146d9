package netstatetest

import (
	"context"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// cascade is what the kernel destroys on its own with something else, and that it comes back.
type cascade struct {
	name     string
	commands string
	plan     []string // slots
	before   string   // what has to be done by hand before the rest can be repaired
}

const allOfV4 = "+ addr 10.244.1.0/32 flannel.1; " + neighsOfV4 +
	"; + fdb 192.0.2.2/32 flannel.1; + fdb 192.0.2.3/32 flannel.1; " + routesOfV4

const (
	neighsOfV4 = "+ neigh 10.244.2.0/32 flannel.1; + neigh 10.244.3.0/32 flannel.1"
	routesOfV4 = "+ route 10.244.2.0/24; + route 10.244.3.0/24"
	neighsOfV6 = "+ neigh fc00:0:0:2::/128 flannel-v6.1; + neigh fc00:0:0:3::/128 flannel-v6.1"
	ownRoutes  = "+ route 10.244.1.0/24; + route fc00:0:0:1::/64"
	routesOfV6 = "+ route fc00:0:0:2::/64; + route fc00:0:0:3::/64"
	allOfV6    = "+ addr fc00:0:0:1::/128 flannel-v6.1; " + neighsOfV6 + "; + fdb 2001:db8::2/128 flannel-v6.1; " +
		"+ fdb 2001:db8::3/128 flannel-v6.1; " + routesOfV6
)

func cascades() []testCase {
	var cases []testCase
	for _, c := range []cascade{
		{"vtep down: routes and neighbours, not the FDB", "ip link set flannel.1 down",
			slots("~ link flannel.1", neighsOfV4, routesOfV4), ""},
		{"vtep v6 down: the address too", "ip link set flannel-v6.1 down",
			slots("~ link flannel-v6.1; + addr fc00:0:0:1::/128 flannel-v6.1", neighsOfV6, routesOfV6), ""},
		{"vtep v6 below IPv6's least MTU: all but the FDB", "ip link set flannel-v6.1 mtu 1200",
			slots("~ link flannel-v6.1; + sysctl net/ipv6/conf/flannel-v6.1/accept_ra; + addr fc00:0:0:1::/128 flannel-v6.1",
				neighsOfV6, routesOfV6), ""},
		{"vtep down and up", "ip link set flannel.1 down; ip link set flannel.1 up", slots(neighsOfV4, routesOfV4), ""},
		{"vtep deleted", "ip link del flannel.1",
			slots("+ link flannel.1; + sysctl net/ipv4/conf/flannel.1/rp_filter", allOfV4), ""},
		{"vtep v6 deleted", "ip link del flannel-v6.1",
			slots("+ link flannel-v6.1; + sysctl net/ipv6/conf/flannel-v6.1/accept_ra", allOfV6), ""},
		{"vtep made anew by someone", "ip link del flannel.1; ip link add flannel.1 type vxlan id 1 dev u0 local 192.0.2.1 dstport 8472 nolearning",
			slots("~ link flannel.1; ~ sysctl net/ipv4/conf/flannel.1/rp_filter", allOfV4), ""},
		{"bridge deleted", "ip link del cni0", slots("+ link cni0; + addr 10.244.1.1/24 cni0; + addr fc00:0:0:1::1/64 cni0",
			ownRoutes), ""},
		{"bridge down", "ip link set cni0 down", slots("~ link cni0; + addr fc00:0:0:1::1/64 cni0", ownRoutes), ""},
		{"last IPv4 address: routes and neighbours", "ip addr del 10.244.1.0/32 dev flannel.1",
			slots("+ addr 10.244.1.0/32 flannel.1", neighsOfV4, routesOfV4), ""},
		{"underlay down: direct routes", "ip link set u0 down", slots("+ route 10.244.4.0/24; + route fc00:0:0:4::/64"),
			"ip link set u0 up; ip addr add 2001:db8::1/64 dev u0 nodad"},
		{"underlay deleted: the vteps", "ip link del u0", slots("+ link flannel-v6.1; + link flannel.1; "+
			"+ sysctl net/ipv4/conf/flannel.1/rp_filter; + sysctl net/ipv6/conf/flannel-v6.1/accept_ra; "+
			"+ addr fc00:0:0:1::/128 flannel-v6.1; + addr 10.244.1.0/32 flannel.1", neighsOfV6, neighsOfV4,
			"+ fdb 2001:db8::2/128 flannel-v6.1; + fdb 2001:db8::3/128 flannel-v6.1; + fdb 192.0.2.2/32 flannel.1; + fdb 192.0.2.3/32 flannel.1",
			routesOfV4, "+ route 10.244.4.0/24", routesOfV6, "+ route fc00:0:0:4::/64"),
			"ip link add u0 type veth peer name u0p; ip link set u0p up; ip link set u0 up; " +
				"ip addr add 192.0.2.1/24 dev u0; ip addr add 2001:db8::1/64 dev u0 nodad"},
		{"underlay's address moved, the last one: direct routes", "ip addr del 192.0.2.1/24 dev u0",
			slots("+ route 10.244.4.0/24"),
			"ip addr add 192.0.2.1/24 dev u0"},
		{"underlay deleted under direct routes", "ip link del u1", nil, ""},
		{"underlay's address gone beside another: nothing",
			"ip addr add 203.0.113.1/24 dev u0; ip addr del 192.0.2.1/24 dev u0", nil, ""},
	} {
		cases = append(cases, testCase{c.name, func(h *host) { h.cascade(c) }})
	}
	return cases
}

// slots joins lists of lines.
func slots(lists ...string) []string { return strings.Split(strings.Join(lists, "; "), "; ") }

func (h *host) cascade(c cascade) {
	h.underlay()
	want := node()
	h.apply(want)
	h.run(strings.Split(c.commands, "; ")...)
	h.slots(want, c.plan...)
	if c.before != "" {
		if err := h.Kernel.Apply(context.Background(), h.diff(want)); err == nil {
			h.Fatal("apply without an underlay: no error")
		}
		h.run(strings.Split(c.before, "; ")...)
	}
	h.settle(want)
}

func ownerships() []testCase {
	return []testCase{
		{"take over what flannel left", takeOver},
		{"routes that flannel left without a device", takeOverRoutes},
		{"routes in the network that flannel did not make", foreignInNetworks},
		{"the blackhole that flannel left", blackholeLeft},
		{"what is not ours is not seen", foreign},
		{"a link-local address counts where it is wanted", linkLocal},
		{"a foreign route in our slot is replaced", foreignInSlot},
		{"routes get metrics of their own", spread},
		{"a foreign route that is preferred to one with its own metric", preferred},
		{"a marked link that nobody wants", func(h *host) {
			h.run("ip link add old0 type bridge", "ip link set old0 alias twill")
			h.slots(netstate.State{}, "- link old0")
			h.apply(netstate.State{})
		}},
	}
}

// takeOver: flannel's device has no mark, its routes have the protocol of "ip route".
func takeOver(h *host) {
	h.underlay()
	h.run(
		"ip link add flannel.1 address 02:00:00:00:04:01 type vxlan id 1 dev u0 local 192.0.2.1 dstport 8472 nolearning",
		"ip link set flannel.1 up", "ip addr add 10.244.1.0/32 dev flannel.1",
		"ip neigh replace 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 nud permanent",
		"bridge fdb append 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 self permanent",
		"ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink",
		"ip neigh replace 10.244.9.0 lladdr 02:00:00:00:04:09 dev flannel.1 nud permanent",
		"bridge fdb append 02:00:00:00:04:09 dev flannel.1 dst 192.0.2.9 self permanent",
		"ip route add 10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink",
	)
	want, index := merge(v4.vtep(), v4.tunnel(2)), h.Index("flannel.1")
	h.slots(want, "~ link flannel.1", "~ sysctl net/ipv4/conf/flannel.1/rp_filter", "~ route 10.244.2.0/24",
		"- route 10.244.9.0/24", "- fdb 192.0.2.9/32 flannel.1", "- neigh 10.244.9.0/32 flannel.1")
	h.apply(want)
	if h.Index("flannel.1") != index {
		h.Error("the device was made anew")
	}
}

func takeOverRoutes(h *host) {
	h.underlay()
	want := merge(v4.direct(2, v4.underlay(2), "u0"), v6.direct(2, v6.underlay(2), "u0"))
	h.apply(want)
	h.run("ip route add 10.244.7.0/24 via 192.0.2.7 dev u0", "ip route add fc00:0:0:7::/64 via 2001:db8::7 dev u0")
	h.plan(want, "- route fc00:0:0:7::/64 via 2001:db8::7 dev u0 proto 3",
		"- route 10.244.7.0/24 via 192.0.2.7 dev u0 proto 3")
	h.apply(want)
}

// foreignInNetworks: what is wider, narrower, of another metric or source than a node's subnet is an administrator's.
func foreignInNetworks(h *host) {
	h.underlay()
	want := node()
	h.apply(want)
	h.run(
		"ip route add 10.244.0.0/16 via 192.0.2.9 dev u0 metric 50",
		"ip route add 10.244.7.7/32 via 192.0.2.9 dev u0",
		"ip route add 10.244.6.0/23 via 192.0.2.9 dev u0",
		"ip route add 10.244.7.0/24 via 192.0.2.9 dev u0 metric 7",
		"ip route add 10.244.8.0/24 via 192.0.2.250 dev u0 onlink",
		"ip route add blackhole 10.244.9.0/24", // not this node's subnet
		"ip route add fc00::/48 via 2001:db8::9 dev u0 metric 50",
		"ip route add fc00:0:0:7::7/128 via 2001:db8::9 dev u0",
		"ip route add fc00:0:0:7::/64 via 2001:db8::9 dev u0 metric 7",
		"ip route add blackhole fc00:0:0:9::/64",
	)
	h.plan(want)
}

// blackholeLeft: flanneld --ip-blackhole-route makes one of the node's own subnet where there is no bridge. It
// would win over the bridge's route.
func blackholeLeft(h *host) {
	h.underlay()
	// cni0's has 256
	lines := []string{"ip route add blackhole 10.244.1.0/24", "ip route add blackhole fc00:0:0:1::/64 metric 1024"}
	h.run(lines...)
	h.apply(bridge())
	for _, line := range lines {
		if err := h.Command(strings.Replace(line, "add", "del", 1)); err == nil {
			h.Errorf("what %q made is still there", line)
		}
	}
}

// linkLocal: the kernel gives most links such an address, which is no business of ours; a bridge needs it to find pods.
func linkLocal(h *host) {
	h.underlay()
	p := netstate.LinkLocal(netstate.MAC{0x0a, 0x58, 10, 244, 1, 1})
	want := merge(bridge(), netstate.NewState(netstate.Addr{Dev: "cni0", Prefix: p}))
	h.apply(want)
	h.plan(bridge())
	h.plan(want) // what is wanted last decides what is news
	h.hints("ip addr del " + p.String() + " dev cni0")
	h.plan(want, "+ addr "+p.String()+" dev cni0")
	h.apply(want)
	h.plan(bridge())
}

func foreign(h *host) {
	h.underlay()
	want := node()
	h.apply(want)
	h.run(
		"ip route add 10.99.0.0/16 via 192.0.2.9 dev u0",               // outside the networks
		"ip route add 10.244.8.0/24 via 192.0.2.9 dev u0 proto static", // the administrator's
		"ip route add 10.244.8.0/24 dev u1 metric 3",                   // no gateway: not flannel's
		"ip route add 10.244.9.0/24 via 192.0.2.9 dev u0 proto bird",   // a routing daemon's
		"ip route add default via 192.0.2.254 dev u0",                  //
		"ip route add default via 2001:db8::254 dev u0",                //
		"ip route add 10.244.9.0/24 via 192.0.2.9 dev u0 table 100",    // another table's
		"ip link add other.9 type vxlan id 9 dev u0 local 192.0.2.1 dstport 8472",
		"ip link set other.9 up", "ip addr add 10.9.0.1/24 dev other.9",
		"bridge fdb append 02:00:00:00:00:09 dev other.9 dst 192.0.2.9 self permanent",
		"ip neigh replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev u0 nud permanent",
		"ip link add br9 type bridge", "ip addr add 10.244.99.1/24 dev br9",
		"ip neigh replace 10.244.1.9 lladdr 02:00:00:00:00:09 dev cni0 nud permanent", // a pod's
		"ip neigh replace 10.244.9.0 lladdr 02:00:00:00:00:09 dev flannel.1 nud reachable",
		"ip neigh replace fe80::9 lladdr 02:00:00:00:00:09 dev flannel-v6.1 nud permanent", // link-local
		"bridge fdb append 02:00:00:00:00:09 dev flannel.1 dst 192.0.2.9 self dynamic",
	)
	h.plan(want)
	for k, o := range h.observe(netstate.State{}) {
		if _, ok := want[k]; !ok {
			h.Errorf("an uninstall would delete what is not ours: %s", o)
		}
	}
}

func foreignInSlot(h *host) {
	h.underlay()
	h.run("ip route add 10.244.2.0/24 via 192.0.2.9 dev u0 proto static",
		"ip route add fc00:0:0:2::/64 via 2001:db8::9 dev u0 proto static")
	want := node()
	h.apply(want)
	h.run("ip route prepend 10.244.2.0/24 via 192.0.2.9 dev u0 proto static")
	h.plan(want, "- route 10.244.2.0/24 via 192.0.2.9 dev u0 proto 4 (no. 2)")
	h.apply(want)
}
