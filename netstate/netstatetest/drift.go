package netstatetest

import (
	"slices"
	"strings"
)

// The lines of node()'s objects, as plans print them.
const (
	link4  = "link flannel.1 vxlan id 1 dev u0 local 192.0.2.1 dstport 8472 mtu 1450 address 02:00:00:00:04:01 up"
	link6  = "link flannel-v6.1 vxlan id 1 dev u0 local 2001:db8::1 dstport 8472 mtu 1430 address 02:00:00:00:06:01 up"
	cni0   = "link cni0 bridge mtu 1430 address 0a:58:0a:f4:01:01 up"
	addr6  = "addr fc00:0:0:1::/128 dev flannel-v6.1"
	gate4  = "addr 10.244.1.1/24 dev cni0"
	gate6  = "addr fc00:0:0:1::1/64 dev cni0 nodad"
	neigh4 = "neigh 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 permanent"
	neigh6 = "neigh fc00:0:0:2:: lladdr 02:00:00:00:06:02 dev flannel-v6.1 permanent"
	fdb4   = "fdb 02:00:00:00:04:02 dst 192.0.2.2 dev flannel.1 self permanent"
	fdb6   = "fdb 02:00:00:00:06:02 dst 2001:db8::2 dev flannel-v6.1 self permanent"
	route4 = "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"
	route6 = "route fc00:0:0:2::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink"
	hole4  = "route blackhole 10.244.1.0/24 metric 4096"
	hole6  = "route blackhole fc00:0:0:1::/64 metric 4096"
	own4   = "route 10.244.1.0/24 dev cni0 src 10.244.1.1 proto 2"
	own6   = "route fc00:0:0:1::/64 dev cni0 metric 256 proto 2"
	gw4    = "route 10.244.4.0/24 via 192.0.2.4 dev u0"
	gw6    = "route fc00:0:0:4::/64 via 2001:db8::4 dev u0"
)

// was is the line of a replaced object: the object, what to replace in it, and by what.
func was(line string, oldNew ...string) string {
	return "~ " + line + " (was " + strings.NewReplacer(oldNew...).Replace(line) + ")"
}

// node3 is a line about node 2 said about node 3.
func node3(line string) string {
	return strings.NewReplacer("10.244.2.", "10.244.3.", "0:0:2:", "0:0:3:", "04:02", "04:03", "06:02",
		"06:03").Replace(line)
}

// drift is one alteration of node(), and the plan that names it: exactly it, and one round repairs it.
type drift struct {
	name     string
	commands string // separated by semicolons
	plan     string
}

func drifts() []testCase {
	var cases []testCase
	for _, d := range slices.Concat(linkDrifts(), entryDrifts(), routeDrifts(), routeTypeDrifts()) {
		cases = append(cases, testCase{d.name, func(h *host) { h.drift(d) }})
	}
	return cases
}

func (h *host) drift(d drift) {
	h.underlay()
	want := node()
	h.apply(want)
	before := [...]int{h.Index("flannel.1"), h.Index("flannel-v6.1"), h.Index("cni0")}
	commands := strings.Split(d.commands, "; ")
	if d.plan == "" || strings.HasPrefix(d.commands, "sysctl") { // these are polled, in the process's own namespace
		h.run(commands...)
	} else {
		h.hints(commands...)
	}
	h.plan(want, strings.Split(d.plan, "\n")...)
	h.apply(want)
	if after := [...]int{h.Index("flannel.1"), h.Index("flannel-v6.1"), h.Index("cni0")}; after != before {
		h.Errorf("a link was made anew: the indices were %v and are %v", before, after)
	}
}

func linkDrifts() []drift {
	return []drift{
		{"vtep mtu", "ip link set flannel.1 mtu 1300", was(link4, "mtu 1450", "mtu 1300")},
		// A new MAC costs the device its neighbours, the permanent ones too.
		{"vtep address", "ip link set flannel.1 address 02:00:00:00:00:99",
			was(link4, "02:00:00:00:04:01", "02:00:00:00:00:99") + "\n+ " + neigh4 + "\n+ " + node3(neigh4)},
		{"vtep address v6", "ip link set flannel-v6.1 address 02:00:00:00:00:99",
			was(link6, "02:00:00:00:06:01", "02:00:00:00:00:99") + "\n+ " + neigh6 + "\n+ " + node3(neigh6)},
		{"vtep alias", "ip link set flannel.1 alias mine", was(link4, " up", " up unmarked")},
		{"vtep without alias", "ip link set flannel-v6.1 alias ''", was(link6, " up", " up unmarked")},
		{"vtep v6 mtu", "ip link set flannel-v6.1 mtu 1300", was(link6, "mtu 1430", "mtu 1300")},
		{"bridge mtu", "ip link set cni0 mtu 1300", was(cni0, "mtu 1430", "mtu 1300")},
		{"bridge address", "ip link set cni0 address 02:00:00:00:00:99", was(cni0, "0a:58:0a:f4:01:01", "02:00:00:00:00:99")},
		{"all three at once", "ip link set flannel.1 mtu 1300; ip link set cni0 alias x; ip link set flannel-v6.1 mtu 1300",
			was(cni0, " up", " up unmarked") + "\n" + was(link6, "mtu 1430", "mtu 1300") + "\n" +
				was(link4, "mtu 1450", "mtu 1300")},
		{"sysctl", "sysctl -q -w net/ipv4/ip_forward=0",
			"~ sysctl net/ipv4/ip_forward = 1 (was sysctl net/ipv4/ip_forward = 0)"},
		{"sysctl v6", "sysctl -q -w net/ipv6/conf/all/forwarding=0",
			"~ sysctl net/ipv6/conf/all/forwarding = 1 (was sysctl net/ipv6/conf/all/forwarding = 0)"},
	}
}

func entryDrifts() []drift {
	return []drift{
		{"addr deleted", "ip addr del fc00:0:0:1::/128 dev flannel-v6.1", "+ " + addr6},
		{"addr of the bridge deleted", "ip addr del fc00:0:0:1::1/64 dev cni0", "+ " + gate6 + "\n+ " + own6},
		{"addr added", "ip addr add 10.9.9.9/24 dev flannel.1", "- addr 10.9.9.9/24 dev flannel.1"},
		{"addr added v6", "ip addr add fc00:0:0:9::9/64 dev cni0 nodad", "- addr fc00:0:0:9::9/64 dev cni0 nodad"},
		{"addr prefix altered", "ip addr add 10.244.1.1/25 dev cni0; ip addr del 10.244.1.1/24 dev cni0",
			"+ " + gate4 + "\n+ " + own4 + "\n- addr 10.244.1.1/25 dev cni0"},
		{"addr scope altered", "ip addr add 10.9.9.9/24 dev cni0; ip addr del 10.244.1.1/24 dev cni0; " +
			"ip addr add 10.244.1.1/24 dev cni0 scope link",
			was(gate4, "cni0", "cni0 scope 253") + "\n- addr 10.9.9.9/24 dev cni0"},
		{"addr with a peer", "ip addr add 10.9.9.9 peer 10.9.9.10/32 dev flannel.1",
			"- addr 10.9.9.9/32 peer 10.9.9.10/32 dev flannel.1"},
		{"addr with a lifetime", "ip addr change 10.244.1.1/24 dev cni0 valid_lft 4000 preferred_lft 4000",
			was(gate4, "cni0", "cni0 valid_lft 4000")},
		{"neigh deleted", "ip neigh del 10.244.2.0 dev flannel.1", "+ " + neigh4},
		{"neigh altered", "ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent",
			was(neigh4, "02:00:00:00:04:02", "02:00:00:00:00:99")},
		{"neigh not permanent", "ip neigh replace 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 nud stale",
			"+ " + neigh4},
		{"neigh added", "ip neigh replace 10.244.9.0 lladdr 02:00:00:00:00:09 dev flannel.1 nud permanent",
			"- neigh 10.244.9.0 lladdr 02:00:00:00:00:09 dev flannel.1 permanent"},
		{"neigh v6 deleted", "ip neigh del fc00:0:0:2:: dev flannel-v6.1", "+ " + neigh6},
		{"neigh v6 altered", "ip neigh replace fc00:0:0:2:: lladdr 02:00:00:00:00:99 dev flannel-v6.1 nud permanent",
			was(neigh6, "02:00:00:00:06:02", "02:00:00:00:00:99")},
		{"fdb deleted", "bridge fdb del 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 self", "+ " + fdb4},
		{"fdb v6 deleted", "bridge fdb del 02:00:00:00:06:02 dev flannel-v6.1 dst 2001:db8::2 self", "+ " + fdb6},
		{"fdb destination altered", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.99 self permanent",
			"+ " + fdb4 + "\n- fdb 02:00:00:00:04:02 dst 192.0.2.99 dev flannel.1 self permanent"},
		// The kernel has one destination for a unicast address: this append changes nothing.
		{"fdb appended", "bridge fdb append 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.99 self permanent", ""},
		{"fdb several destinations", "bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.0.2.98 self permanent; " +
			"bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.0.2.99 self permanent",
			"- fdb 00:00:00:00:00:00 dst 192.0.2.99 dev flannel.1 self permanent\n" +
				"- fdb 00:00:00:00:00:00 dst 192.0.2.98 dev flannel.1 self permanent"},
		{"fdb added", "bridge fdb append 02:00:00:00:00:09 dev flannel-v6.1 dst 2001:db8::9 self permanent",
			"- fdb 02:00:00:00:00:09 dst 2001:db8::9 dev flannel-v6.1 self permanent"},
		{"fdb port altered", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 port 4789 self permanent",
			was(fdb4, "permanent", "permanent port 4789")},
		{"fdb vni altered", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 vni 77 self permanent",
			was(fdb4, "permanent", "permanent vni 77")},
		{"fdb added with a port", "bridge fdb append 02:00:00:00:00:09 dev flannel.1 dst 192.0.2.9 port 4789 self permanent",
			"- fdb 02:00:00:00:00:09 dst 192.0.2.9 dev flannel.1 self permanent port 4789"},
		{"fdb static", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 self static",
			was(fdb4, "permanent", "permanent static")},
		{"fdb added static", "bridge fdb append 02:00:00:00:00:09 dev flannel.1 dst 192.0.2.9 self static",
			"- fdb 02:00:00:00:00:09 dst 192.0.2.9 dev flannel.1 self permanent static"},
		{"fdb via another device", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 via u1 self permanent",
			was(fdb4, "permanent", "permanent via u1")},
		{"fdb not permanent", "bridge fdb replace 02:00:00:00:04:02 dev flannel.1 dst 192.0.2.2 self dynamic", "+ " + fdb4},
	}
}

func routeDrifts() []drift {
	return []drift{
		{"own route deleted", "ip route del 10.244.1.0/24 dev cni0", "+ " + own4},
		{"own route v6 deleted", "ip route del fc00:0:0:1::/64 dev cni0", "+ " + own6},
		{"own route with an MTU", "ip route replace 10.244.1.0/24 dev cni0 proto kernel scope link src 10.244.1.1 mtu 700",
			was(own4, "proto 2", "proto 2 mtu 700")},
		{"own route v6 with an MTU", "ip route replace fc00:0:0:1::/64 dev cni0 proto kernel metric 256 mtu 1290",
			was(own6, "proto 2", "proto 2 mtu 1290")},
		{"own route of another metric", "ip route del 10.244.1.0/24 dev cni0; ip route add 10.244.1.0/24 dev cni0 metric 50",
			"+ " + own4 + "\n- route 10.244.1.0/24 dev cni0 metric 50 proto 3"},
		{"own route refused", "ip route del 10.244.1.0/24 dev cni0; ip route add blackhole 10.244.1.0/24",
			was(own4, "route", "route blackhole", "dev cni0 src 10.244.1.1 proto 2", "proto 3")},
		{"own route behind another", "ip route prepend unreachable 10.244.1.0/24",
			"- route 10.244.1.0/24 proto 3 (no. 2) type 7"},
		{"route deleted", "ip route del 10.244.2.0/24", "+ " + route4},
		{"route v6 deleted", "ip route del fc00:0:0:2::/64", "+ " + route6},
		{"route direct deleted", "ip route del 10.244.4.0/24", "+ " + gw4},
		{"route direct v6 deleted", "ip route del fc00:0:0:4::/64", "+ " + gw6},
		{"route gateway altered", "ip route replace 10.244.2.0/24 via 10.244.3.0 dev flannel.1 onlink proto 116",
			was(route4, "via 10.244.2.0", "via 10.244.3.0")},
		{"route v6 gateway altered", "ip route replace fc00:0:0:2::/64 via fc00:0:0:3:: dev flannel-v6.1 onlink proto 116",
			was(route6, "via fc00:0:0:2::", "via fc00:0:0:3::")},
		{"route device altered", "ip route replace 10.244.2.0/24 via 192.0.2.2 dev u0 proto 116",
			was(route4, "via 10.244.2.0 dev flannel.1 onlink", "via 192.0.2.2 dev u0")},
		// The kernel refuses (EINVAL) to replace this one by an onlink gateway that u0 seems to reach.
		{"route v6 device altered", "ip route replace fc00:0:0:2::/64 via 2001:db8::2 dev u0 proto 116",
			was(route6, "via fc00:0:0:2:: dev flannel-v6.1 onlink", "via 2001:db8::2 dev u0")},
		{"route protocol altered", "ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink proto boot",
			was(route4, "onlink", "onlink proto 3")},
		{"route mtu", "ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink proto 116 mtu 900",
			was(route4, "onlink", "onlink mtu 900")},
		{"route v6 mtu", "ip route replace fc00:0:0:2::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink proto 116 mtu 1300",
			was(route6, "onlink", "onlink mtu 1300")},
		{"route source", "ip route replace 10.244.4.0/24 via 192.0.2.4 dev u0 proto 116 src 10.244.1.1",
			was(gw4, "dev u0", "dev u0 src 10.244.1.1")},
		{"route second metric", "ip route add 10.244.2.0/24 via 10.244.3.0 dev flannel.1 onlink proto 116 metric 7",
			"- route 10.244.2.0/24 via 10.244.3.0 dev flannel.1 metric 7 onlink"},
		{"route added", "ip route add 10.244.9.0/24 via 10.244.2.0 dev flannel.1 onlink proto 116",
			"- route 10.244.9.0/24 via 10.244.2.0 dev flannel.1 onlink"},
		{"route appended", "ip route append 10.244.2.0/24 via 192.0.2.9 dev u0 proto 116",
			"- route 10.244.2.0/24 via 192.0.2.9 dev u0 (no. 2)"},
		{"route prepended", "ip route prepend 10.244.2.0/24 via 192.0.2.9 dev u0 proto 116",
			"- route 10.244.2.0/24 via 192.0.2.9 dev u0 (no. 2)"},
		{"route prepended, ours gone", "ip route prepend 10.244.2.0/24 via 192.0.2.9 dev u0 proto 116; " +
			"ip route prepend 10.244.2.0/24 via 192.0.2.8 dev u0 proto 116; ip route del 10.244.2.0/24 via 10.244.2.0 dev flannel.1",
			was(route4, "via 10.244.2.0 dev flannel.1 onlink", "via 192.0.2.8 dev u0") +
				"\n- route 10.244.2.0/24 via 192.0.2.9 dev u0 (no. 2)"},
		{"route with a tos", "ip route add 10.244.2.0/24 tos 0x10 via 192.0.2.9 dev u0 proto 116",
			"- route 10.244.2.0/24 via 192.0.2.9 dev u0 tos 0x10"},
		{"route unreachable added", "ip route add unreachable 10.244.9.0/24 proto 116", "- route 10.244.9.0/24 type 7"},
		{"route v6 unreachable added", "ip route add unreachable fc00:0:0:9::/64 proto 116",
			"- route fc00:0:0:9::/64 dev lo type 7"},
		{"route added with scope", "ip route add 10.244.9.0/24 dev u0 scope global proto 116",
			"- route 10.244.9.0/24 dev u0 scope universe"},
		{"route added to another table", "ip route add 10.244.9.0/24 via 192.0.2.9 dev u0 proto 116 table 100",
			"- route 10.244.9.0/24 via 192.0.2.9 dev u0 table 100"},
		{"route v6 added to another table", "ip route add fc00:0:0:2::/64 via 2001:db8::9 dev u0 proto 116 table 1000",
			"- route fc00:0:0:2::/64 via 2001:db8::9 dev u0 table 1000"},
		{"route added to the local table", "ip route add 10.244.2.0/24 via 192.0.2.9 dev u0 proto 116 table 255",
			"- route 10.244.2.0/24 via 192.0.2.9 dev u0 table 255"},
		{"blackhole added to another table", "ip route add blackhole 10.244.2.0/24 proto 116 table 100",
			"- route blackhole 10.244.2.0/24 table 100"},
		{"route added with link scope", "ip route add 10.244.9.0/24 dev u0 proto 116", "- route 10.244.9.0/24 dev u0"},
		{"route v6 added", "ip route add fc00:0:0:9::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink proto 116",
			"- route fc00:0:0:9::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink"},
	}
}

// routeTypeDrifts are of routes with several next hops, and of those that refuse or drop packets.
func routeTypeDrifts() []drift {
	return []drift{
		{"route multipath", "ip route replace 10.244.4.0/24 proto 116 nexthop via 192.0.2.4 dev u0 nexthop via 192.0.2.5 dev u0",
			was(gw4, " via 192.0.2.4 dev u0", " multipath 2")},
		{"route v6 multipath", "ip route replace fc00:0:0:4::/64 proto 116 nexthop via 2001:db8::4 dev u0 nexthop via 2001:db8::5 dev u0",
			was(gw6, " via 2001:db8::4 dev u0", " multipath 2")},
		{"route multipath added", "ip route add 10.244.9.0/24 proto 116 nexthop via 192.0.2.4 dev u0 nexthop via 192.0.2.5 dev u0",
			"- route 10.244.9.0/24 multipath 2"},
		{"route v6 multipath added", "ip route add fc00:0:0:9::/64 proto 116 nexthop via 2001:db8::4 dev u0 nexthop via 2001:db8::5 dev u0",
			"- route fc00:0:0:9::/64 multipath 2"},
		{"route unreachable in our slot", "ip route replace unreachable 10.244.2.0/24 proto 116",
			was(route4, " via 10.244.2.0 dev flannel.1 onlink", " type 7")},
		{"route without gateway", "ip route replace 10.244.2.0/24 dev flannel.1 proto 116",
			was(route4, " via 10.244.2.0 dev flannel.1 onlink", " dev flannel.1")},
		{"blackhole deleted", "ip route del blackhole 10.244.1.0/24 metric 4096", "+ " + hole4},
		{"blackhole v6 deleted", "ip route del blackhole fc00:0:0:1::/64 metric 4096", "+ " + hole6},
		{"blackhole added", "ip route add blackhole 10.244.9.0/24 proto 116", "- route blackhole 10.244.9.0/24"},
		{"blackhole turned into a route", "ip route replace 10.244.1.0/24 via 192.0.2.9 dev u0 metric 4096 proto 116",
			was(hole4, "blackhole 10.244.1.0/24 metric 4096", "10.244.1.0/24 via 192.0.2.9 dev u0 metric 4096")},
		{"route turned into a blackhole", "ip route replace blackhole 10.244.2.0/24 proto 116",
			was(route4, "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink", "route blackhole 10.244.2.0/24")},
		{"route v6 turned into a blackhole", "ip route replace blackhole fc00:0:0:2::/64 proto 116 metric 1024",
			was(route6, "route fc00:0:0:2::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink", "route blackhole fc00:0:0:2::/64")},
	}
}
