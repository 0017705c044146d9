package causes

import (
	"fmt"
	"net/netip"
)

// family is an address family, as nft and ip call it.
type family string

const (
	ip4 family = "ip"
	ip6 family = "ip6"
)

// flag is the option of ip.
func (f family) flag() string {
	if f == ip6 {
		return "-6"
	}
	return "-4"
}

// bits is the length of an address.
func (f family) bits() int {
	if f == ip6 {
		return 128
	}
	return 32
}

// Names of devices and places that are the same in each lab.
const (
	underlay  = "underlay"
	uplink    = "eth1"
	bridge    = "cni0"
	podDevice = "eth0"
	router    = "br1" // the underlay's bridge, whose ports have the nodes' names
)

// world is what a lab has: the names that causes are made of.
type world struct {
	families []family
	cluster  map[family]netip.Prefix // of all pods
	router   map[family]netip.Addr   // the underlay's
	segment  map[family]netip.Prefix
	nodes    []node
	// The parameters below /proc/sys: those of a namespace by the kind of place, those of each device, and those of each
	// device's neighbours, with %s for the device.
	sysctls map[string][]string
}

type node struct {
	name    string
	addr    map[family]netip.Addr // on the underlay
	subnet  map[family]netip.Prefix
	gateway map[family]netip.Addr // of its pods
	vtep    map[family]string     // the overlay's device; "": none
	mac     map[string]string     // by device
	pods    []pod
}

func (n *node) ports() []string {
	var names []string
	for _, p := range n.pods {
		names = append(names, p.port)
	}
	return names
}

type pod struct {
	id   string // node1/pod1
	addr map[family]netip.Addr
	mac  string
	port string // its cable's end on the node
}

// exampleWorld is a lab for tests that need no root.
func exampleWorld() *world {
	w := &world{
		families: []family{ip4, ip6},
		cluster: map[family]netip.Prefix{
			ip4: netip.MustParsePrefix("10.244.0.0/16"), ip6: netip.MustParsePrefix("fd00:244::/56")},
		router:  addrs("192.168.33.1", "fd33::1"),
		segment: prefixes("192.168.33.0/24", "fd33::/64"),
		sysctls: map[string][]string{
			"node":      {"net/ipv4/ip_forward", "net/ipv6/route/gc_thresh"},
			"pod":       {"net/ipv4/ip_default_ttl"},
			"device":    {"net/ipv4/conf/%s/rp_filter", "net/ipv6/conf/%s/disable_ipv6"},
			"neighbour": {"net/ipv4/neigh/%s/app_solicit"},
		},
	}
	for i := 1; i <= 3; i++ {
		n := node{name: fmt.Sprintf("node%d", i),
			addr:    addrs(fmt.Sprintf("192.168.33.10%d", i), fmt.Sprintf("fd33::10%d", i)),
			subnet:  prefixes(fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:0:%d::/64", i)),
			gateway: addrs(fmt.Sprintf("10.244.%d.1", i), fmt.Sprintf("fd00:244:0:%d::1", i)),
			vtep:    map[family]string{ip4: "flannel.1", ip6: "flannel-v6.1"},
			mac: map[string]string{"flannel.1": fmt.Sprintf("02:00:00:00:01:0%d", i),
				"flannel-v6.1": fmt.Sprintf("02:00:00:00:02:0%d", i), uplink: fmt.Sprintf("02:00:00:00:03:0%d", i),
				bridge: fmt.Sprintf("02:00:00:00:04:0%d", i)}}
		for k := 1; k <= 2; k++ {
			n.pods = append(n.pods, pod{id: fmt.Sprintf("node%d/pod%d", i, k), mac: fmt.Sprintf("02:00:00:00:05:%d%d",
				i, k),
				addr: addrs(fmt.Sprintf("10.244.%d.%d", i, k+1), fmt.Sprintf("fd00:244:0:%d::%d", i, k+1)),
				port: fmt.Sprintf("veth%d%d", i, k)})
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

func addrs(v4, v6 string) map[family]netip.Addr {
	return map[family]netip.Addr{ip4: netip.MustParseAddr(v4), ip6: netip.MustParseAddr(v6)}
}

func prefixes(v4, v6 string) map[family]netip.Prefix {
	return map[family]netip.Prefix{ip4: netip.MustParsePrefix(v4), ip6: netip.MustParsePrefix(v6)}
}

// places are the names of all namespaces that causes can be in.
func (w *world) places() []string {
	names := []string{underlay}
	for _, n := range w.nodes {
		names = append(names, n.name)
		for _, p := range n.pods {
			names = append(names, p.id)
		}
	}
	return names
}
