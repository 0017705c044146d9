package causes

import (
	"fmt"
	"slices"
	"strings"
)

// drawLink draws a device that is altered.
func drawLink(d *draw) *cause {
	p := d.somewhere()
	device := d.device(p)
	a := choose(d, "attribute of a link", linkAttributes)(d)
	set := "ip link set dev " + device + " "
	s := step{in: p.name, before: fmt.Sprintf(a.read, device), do: set + a.value, undo: set + a.back}
	if a.read == "" {
		s.before = ""
	}
	if a.read == readMaster {
		s.do = `[ -n "$OLD" ] && ` + s.do // only a port leaves its bridge
	}
	c := &cause{place: p.name, steps: []step{s}, tokens: [][]string{{device}, a.words}}
	if a.cable {
		c.also = d.otherEnd(p, device)
	}
	return c
}

// otherEnd is who has the other end of a cable.
func (d *draw) otherEnd(p place, device string) []string {
	switch {
	case p.pod != nil:
		return []string{p.node.name}
	case p.node == nil && device != router:
		return []string{device} // the ports are named after the nodes
	case p.node != nil && device == uplink:
		return []string{underlay}
	case p.node != nil:
		for _, pod := range p.node.pods {
			if pod.port == device {
				return []string{pod.id}
			}
		}
	}
	return nil
}

// linkAttribute is something that ip link sets.
type linkAttribute struct {
	value, back string
	read        string   // prints what back has as $OLD, with %s for the device
	words       []string // by one of them it is known
	cable       bool     // the other end of the cable sees it too
}

const (
	readMTU    = `ip -o link show dev %s | sed 's/.* mtu \([0-9]*\).*/\1/'`
	readMAC    = `ip -o link show dev %s | sed 's/.*link.ether \([0-9a-f:]*\).*/\1/'`
	readQueue  = `ip -o link show dev %s | sed -n 's/.* qlen \([0-9]*\).*/\1/p'`
	readMaster = `ip -o link show dev %s | sed -n 's/.* master \([^ ]*\).*/\1/p'`
)

func plain(value, back string, words ...string) func(*draw) linkAttribute {
	return func(*draw) linkAttribute { return linkAttribute{value: value, back: back, words: words} }
}

var linkAttributes = []option[func(*draw) linkAttribute]{
	{"down", func(*draw) linkAttribute {
		return linkAttribute{value: "down", back: "up", words: []string{"down", "DOWN"}, cable: true}
	}},
	{"arp off", plain("arp off", "arp on", "arp", "NOARP", "noarp")},
	{"multicast off", plain("multicast off", "multicast on", "multicast")},
	{"promisc", plain("promisc on", "promisc off", "promisc")},
	{"allmulticast", plain("allmulticast on", "allmulticast off", "allmulticast")},
	{"mtu", func(d *draw) linkAttribute {
		return linkAttribute{value: "mtu " + d.pick("mtu", "600", "1280", "1400", "1420", "1500", "9000"),
			back: "mtu $OLD",
			read: readMTU, words: []string{"mtu", "MTU"}, cable: true}
	}},
	{"address", func(d *draw) linkAttribute {
		mac := d.mac()
		return linkAttribute{value: "address " + mac, back: "address $OLD", read: readMAC, words: []string{mac,
			"address", "MAC"}}
	}},
	{"another's address", func(d *draw) linkAttribute {
		mac := d.anyPod().mac
		return linkAttribute{value: "address " + mac, back: "address $OLD", read: readMAC, words: []string{mac,
			"address", "MAC"}}
	}},
	{"txqueuelen", func(*draw) linkAttribute {
		return linkAttribute{value: "txqueuelen 1", back: "txqueuelen ${OLD:-0}", read: readQueue,
			words: []string{"txqueuelen", "qlen"}}
	}},
	{"carrier off", func(*draw) linkAttribute {
		return linkAttribute{value: "carrier off", back: "carrier on", words: []string{"carrier"}, cable: true}
	}},
	{"protodown", func(*draw) linkAttribute {
		return linkAttribute{value: "protodown on", back: "protodown off", words: []string{"protodown"}, cable: true}
	}},
	{"nomaster", func(*draw) linkAttribute {
		return linkAttribute{value: "nomaster", back: `master "$OLD"`, read: readMaster, words: []string{"master",
			"bridge", "port"}}
	}},
	{"group", plain("group 7", "group default", "group")},
	{"alias", plain("alias site", "alias ''", "alias")},
	{"gso", plain("gso_max_size 2000", "gso_max_size 65536", "gso_max_size", "gso")},
}

// drawAddress draws an address that is added or deleted.
func drawAddress(d *draw) *cause {
	f := d.family()
	return choose(d, "address", addressCauses)(d, f)
}

// addressAdded puts an address onto a device, where it is not looked for duplicates.
func addressAdded(in, device, addr string, f family) *cause {
	nodad := map[family]string{ip4: "brd +", ip6: "nodad"}[f]
	if strings.HasSuffix(addr, "/32") {
		nodad = ""
	}
	bare, _, _ := strings.Cut(addr, "/")
	return &cause{place: in, tokens: one(bare, device), steps: []step{{in: in,
		do:   words("ip", f.flag(), "addr add", addr, "dev", device, nodad),
		undo: words("ip", f.flag(), "addr del", addr, "dev", device)}}}
}

var addressCauses = []option[func(*draw, family) *cause]{
	{"pod's on node's lo", func(d *draw, f family) *cause {
		return addressAdded(d.aNode().name, "lo", fmt.Sprintf("%s/%d", d.anyPod().addr[f], f.bits()), f)
	}},
	{"pod's on another pod", func(d *draw, f family) *cause {
		return addressAdded(d.aPod().name, podDevice, fmt.Sprintf("%s/%d", d.anyPod().addr[f],
			d.world.nodes[0].subnet[f].Bits()), f)
	}},
	{"pod's on its bridge", func(d *draw, f family) *cause {
		p := d.aNode()
		return addressAdded(p.name, bridge, fmt.Sprintf("%s/%d", p.node.pods[0].addr[f], p.node.subnet[f].Bits()), f)
	}},
	{"gateway's on a pod", func(d *draw, f family) *cause {
		p := d.aPod()
		return addressAdded(p.name, podDevice, fmt.Sprintf("%s/%d", p.node.gateway[f], p.node.subnet[f].Bits()), f)
	}},
	{"peer's subnet on a device", func(d *draw, f family) *cause {
		p := d.aNode()
		peer := d.peer(p.node)
		addr := peer.pods[0].addr[f].Next().Next().Next()
		c := addressAdded(p.name, d.device(p), fmt.Sprintf("%s/%d", addr, peer.subnet[f].Bits()), f)
		c.tokens[0] = append(c.tokens[0], peer.subnet[f].String()) // the kernel's route to it is what loses packets
		return c
	}},
	{"node's on another node", func(d *draw, f family) *cause {
		p := d.aNode()
		return addressAdded(p.name, uplink, fmt.Sprintf("%s/%d", d.peer(p.node).addr[f], d.world.segment[f].Bits()), f)
	}},
	{"node's on the underlay", func(d *draw, f family) *cause {
		return addressAdded(underlay, router, fmt.Sprintf("%s/%d", d.anyNode().addr[f], d.world.segment[f].Bits()), f)
	}},
	{"unused", func(d *draw, f family) *cause {
		p := d.somewhere()
		return addressAdded(p.name, d.device(p), map[family]string{ip4: "192.0.2.9/32", ip6: "2001:db8::9/128"}[f], f)
	}},
	{"deleted", func(d *draw, f family) *cause {
		p := d.somewhere()
		device, addr, length := router, d.world.router[f], d.world.segment[f].Bits()
		switch {
		case p.pod != nil:
			device, addr, length = podDevice, p.pod.addr[f], p.node.subnet[f].Bits()
		case p.node != nil && d.pick("deleted address of a node", bridge, uplink) == bridge:
			device, addr, length = bridge, p.node.gateway[f], p.node.subnet[f].Bits()
		case p.node != nil:
			device, addr, length = uplink, p.node.addr[f], d.world.segment[f].Bits()
		}
		c := addressAdded(p.name, device, fmt.Sprintf("%s/%d", addr, length), f)
		s := &c.steps[0]
		s.do, s.undo = s.undo, s.do
		return c
	}},
}

// drawPort draws a flag of a bridge's port.
func drawPort(d *draw) *cause {
	p := d.withBridge()
	ports := d.portsOf(p)
	d.Shuffle(len(ports), func(i, k int) { ports[i], ports[k] = ports[k], ports[i] })
	flag := choose(d, "flag of a port", portFlags)
	device := ports[0]
	c := &cause{place: p.name, tokens: [][]string{{device}, flag.words}}
	if flag.both {
		c.tokens[0] = ports[:2]
		ports = ports[:2]
	} else {
		ports = ports[:1]
	}
	for _, port := range ports {
		c.steps = append(c.steps, step{in: p.name, before: fmt.Sprintf(flag.read, port),
			do: fmt.Sprintf(flag.do, port), undo: fmt.Sprintf(flag.undo, port)})
	}
	for i := range c.steps {
		if flag.read == "" {
			c.steps[i].before = ""
		}
	}
	slices.Sort(c.tokens[0])
	return c
}

// portFlag is what bridge link and bridge vlan set of a port.
type portFlag struct {
	read, do, undo string // with %s for the port
	words          []string
	both           bool // on two ports
}

// turn is a flag that is turned on or off.
func turn(name, value, back string) portFlag {
	return portFlag{do: "bridge link set dev %s " + name + " " + value, words: []string{name},
		undo: "bridge link set dev %s " + name + " " + back}
}

// hairpin is not the same on each port.
var hairpin = portFlag{read: "bridge -d link show dev %s | grep -o 'hairpin [a-z]*'", words: []string{"hairpin"},
	do: "bridge link set dev %s hairpin on", undo: "bridge link set dev %s $OLD"}

var isolated = portFlag{do: "bridge link set dev %s isolated on", undo: "bridge link set dev %s isolated off",
	words: []string{"isolated"}, both: true}

var portFlags = []option[portFlag]{
	{"isolated", isolated},
	{"isolated alone", turn("isolated", "on", "off")},
	{"state disabled", turn("state", "0", "3")},
	{"state listening", turn("state", "1", "3")},
	{"state learning", turn("state", "2", "3")},
	{"state blocking", turn("state", "4", "3")},
	{"learning", turn("learning", "off", "on")},
	{"flood", turn("flood", "off", "on")},
	{"mcast_flood", turn("mcast_flood", "off", "on")},
	{"bcast_flood", turn("bcast_flood", "off", "on")},
	{"hairpin", hairpin},
	{"guard", turn("guard", "on", "off")},
	{"root_block", turn("root_block", "on", "off")},
	{"neigh_suppress", turn("neigh_suppress", "on", "off")},
	{"locked", turn("locked", "on", "off")},
	{"fastleave", turn("fastleave", "on", "off")},
	{"cost", turn("cost", "200", "2")},
	{"pvid", portFlag{do: "bridge vlan add dev %s vid 7 pvid untagged",
		undo:  "bridge vlan del dev %[1]s vid 7; bridge vlan add dev %[1]s vid 1 pvid untagged",
		words: []string{"vlan", "pvid", "VLAN", "vid"}}},
	{"no vlan", portFlag{do: "bridge vlan del dev %s vid 1", undo: "bridge vlan add dev %s vid 1 pvid untagged",
		words: []string{"vlan", "pvid", "VLAN", "vid"}}},
}

// drawBridge draws an attribute of a bridge.
func drawBridge(d *draw) *cause {
	p := d.withBridge()
	device, ports := router, d.portsOf(p)
	if p.node != nil {
		device = bridge
	}
	a := choose(d, "attribute of a bridge", bridgeAttributes)
	set := "ip link set dev " + device + " type bridge " + a.name + " "
	c := &cause{place: p.name, tokens: [][]string{{device}, {a.name}}, steps: []step{{in: p.name,
		before: fmt.Sprintf(`ip -d -o link show dev %s | sed -n 's/.* %s \([^ ]*\).*/\1/p'`, device, a.name),
		do:     `[ -n "$OLD" ] && ` + set + a.value, undo: set + "$OLD"}}}
	if a.vlan != "" {
		port := ports[d.IntN(len(ports))]
		c.steps = append(c.steps, step{in: p.name, do: fmt.Sprintf(a.vlan, port),
			undo: fmt.Sprintf("bridge vlan del dev %[1]s vid 7; bridge vlan add dev %[1]s vid 1 pvid untagged", port)})
		c.tokens = [][]string{{device, port}, {a.name, "vlan", "VLAN", "pvid", "vid"}}
	}
	return c
}

type bridgeAttribute struct {
	name, value string
	vlan        string // a command for a port
}

var bridgeAttributes = []option[bridgeAttribute]{
	{"vlan_filtering", bridgeAttribute{name: "vlan_filtering", value: "1"}},
	{"vlan_filtering without VLAN", bridgeAttribute{"vlan_filtering", "1", "bridge vlan del dev %s vid 1"}},
	{"vlan_filtering with another pvid", bridgeAttribute{"vlan_filtering", "1",
		"bridge vlan add dev %s vid 7 pvid untagged"}},
	{"ageing_time", bridgeAttribute{name: "ageing_time", value: "0"}},
	{"stp_state", bridgeAttribute{name: "stp_state", value: "1"}},
	{"mcast_snooping", bridgeAttribute{name: "mcast_snooping", value: "1"}},
	{"mcast_querier", bridgeAttribute{name: "mcast_querier", value: "1"}},
	{"nf_call_iptables", bridgeAttribute{name: "nf_call_iptables", value: "1"}},
	{"nf_call_arptables", bridgeAttribute{name: "nf_call_arptables", value: "1"}},
	{"forward_delay", bridgeAttribute{name: "forward_delay", value: "3000"}},
	{"group_fwd_mask", bridgeAttribute{name: "group_fwd_mask", value: "8"}},
	{"priority", bridgeAttribute{name: "priority", value: "100"}},
	{"vlan_default_pvid", bridgeAttribute{name: "vlan_default_pvid", value: "0"}},
}
