//go:build soak

package guest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// trait is something that a host can have, and that an overlay may be in the way of.
type trait struct {
	name string
	give func(g *guest) string // makes it and returns it in words
}

// traits are drawn one by one, each with a chance of one in three.
var traits = []trait{
	{"lan", (*guest).lan}, {"address on lo", (*guest).loopback}, {"floating address", (*guest).floating},
	{"second default route", (*guest).secondDefault}, {"policy routing", (*guest).policyRouting}, {"parameters", (*guest).parameters},
	{"docker", (*guest).docker}, {"firewall", (*guest).firewall}, {"tunnel", (*guest).tunnel}, {"vlan", (*guest).vlan},
	{"alias", (*guest).alias}, {"router advertisements", (*guest).advertised},
	{"libvirt", (*guest).libvirt}, {"DHCP", (*guest).dynamic}, {"bond", (*guest).bond}, {"802.1Q", (*guest).dot1q},
}

func (g *guest) draw() {
	for _, t := range traits {
		if g.rand.IntN(3) == 0 {
			g.traits = append(g.traits, t.name+": "+t.give(g))
		}
	}
}

// pick returns one of the texts.
func (g *guest) pick(texts ...string) string { return texts[g.rand.IntN(len(texts))] }

// lan gives a second NIC, and a neighbour in its network.
func (g *guest) lan() string {
	prefix := netip.MustParsePrefix(g.pick("192.0.2.0/24", "192.0.2.0/24", "10.244.200.0/24", "10.244.0.0/16", "10.0.0.0/8", peer, own, "10.244.1.128/26",
		"10.96.0.0/16"))
	first, second := prefix.Addr().Next(), prefix.Addr().Next().Next()
	if prefix.Bits() < 24 { // no address of a node's subnet
		first = netip.AddrFrom4([4]byte{prefix.Addr().As4()[0], prefix.Addr().As4()[1], 99, 1})
		second = first.Next()
	}
	g.plug("eth9", "nbr", netip.PrefixFrom(first, prefix.Bits()), netip.PrefixFrom(second, prefix.Bits()))
	return prefix.String()
}

// plug makes a device with a neighbour in a namespace of its own.
func (g *guest) plug(dev, name string, at, neighbour netip.Prefix) {
	pod, err := g.node.AddNamespace(name)
	g.must(err)
	g.run(fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", dev, pod.Host.Name), "ip link set "+dev+" up")
	for _, c := range []string{"ip link set lo up", "ip link set eth0 up", fmt.Sprintf("ip addr add %s dev eth0", neighbour)} {
		_, err := pod.Exec(g.Context(), strings.Fields(c)...)
		g.must(err)
	}
	g.run(fmt.Sprintf("ip addr add %s dev %s", at, dev))
	g.probe("the neighbour on "+dev, g.node.Host, neighbour.Addr())
	g.probe("the node, from its neighbour on "+dev, pod.Host, at.Addr())
}

func (g *guest) loopback() string {
	addr := g.pick("198.51.100.9", "198.51.100.9", "203.0.115.9", "10.244.200.9", "10.244.1.200", "10.244.2.200")
	g.run("ip addr add " + addr + "/32 dev lo")
	g.probe("the address on lo", g.node.Host, netip.MustParseAddr(addr))
	return addr
}

func (g *guest) floating() string {
	lifetime := g.pick("", " preferred_lft 0", " valid_lft 3600 preferred_lft 1800")
	g.run("ip addr add 192.168.33.200/"+g.pick("24", "32")+" dev eth1"+lifetime, "ip -6 addr add fd33::200/128 dev eth1 nodad"+lifetime)
	g.probe("the floating address, from the router", g.lab.Router(), netip.MustParseAddr("192.168.33.200"))
	return "192.168.33.200" + lifetime
}

func (g *guest) secondDefault() string {
	g.plug("wan0", "wan", netip.MustParsePrefix("203.0.114.2/24"), netip.MustParsePrefix("203.0.114.1/24"))
	how := g.pick("via 203.0.114.1 dev wan0 metric 900", "via 169.254.7.7 dev wan0 onlink metric 900", "dev wan0 metric 900")
	g.run("ip route add default " + how)
	return how
}

func (g *guest) policyRouting() string {
	rule := g.pick("fwmark 0x7/0x7", "from 192.0.2.0/24", "to 192.0.2.128/25", "iif lo to 198.51.100.0/24")
	g.run("ip rule add "+rule+" lookup 77 priority 1000", "ip route add default via 192.168.33.1 dev eth1 table 77")
	return rule
}

func (g *guest) parameters() string {
	var set []string
	for _, name := range []string{"ipv4.conf.all.rp_filter", "ipv4.conf.default.rp_filter", "ipv4.ip_forward", "ipv6.conf.all.accept_ra",
		"ipv6.conf.default.accept_ra", "ipv4.conf.eth1.arp_ignore", "ipv4.conf.default.forwarding"} {
		if g.rand.IntN(2) == 0 {
			most := 3
			if strings.HasSuffix(name, "forward") || strings.HasSuffix(name, "forwarding") {
				most = 2
			}
			set = append(set, fmt.Sprintf("net.%s=%d", name, g.rand.IntN(most)))
		}
	}
	for _, s := range set {
		g.run("sysctl -qw " + s)
	}
	return strings.Join(set, " ")
}

// docker gives a bridge with a container, as Docker makes them, with its masquerading.
func (g *guest) docker() string {
	base := g.pick("172.17.0", "172.17.0", "172.17.0", "10.244.201", "10.244.1", "10.244.2")
	bits := g.pick("24", "16")
	pod, err := g.node.AddNamespace("container")
	g.must(err)
	g.run("ip link add docker0 type bridge", "ip link set docker0 up", fmt.Sprintf("ip addr add %s.33/%s dev docker0", base, bits))
	if g.rand.IntN(3) == 0 {
		g.idleAtPeer = base+".0/"+bits == peer
		return base + ".33/" + bits + ", idle"
	}
	g.run(fmt.Sprintf("ip link add dock1 type veth peer name eth0 netns %s", pod.Host.Name), "ip link set dock1 master docker0 up",
		"iptables -t nat -N DOCKER", fmt.Sprintf("iptables -t nat -A POSTROUTING -s %s.33/%s ! -o docker0 -j MASQUERADE", base, bits),
		"iptables -N DOCKER-USER", "iptables -A FORWARD -j DOCKER-USER", "iptables -A FORWARD -i docker0 -j ACCEPT",
		"iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "iptables -P FORWARD DROP",
		"sysctl -qw net.ipv4.ip_forward=1")
	for _, c := range []string{"ip link set lo up", "ip link set eth0 up", fmt.Sprintf("ip addr add %s.34/%s dev eth0", base, bits),
		"ip route add default via " + base + ".33"} {
		_, err := pod.Exec(g.Context(), strings.Fields(c)...)
		g.must(err)
	}
	g.probe("the container", g.node.Host, netip.MustParseAddr(base+".34"))
	_, outside := g.lab.Outside()
	g.probe("the outside, from the container", pod.Host, outside[0])
	return base + ".33/" + bits
}

func (g *guest) tunnel() string {
	how := g.pick("vxlan id 9 dev eth1 dstport 4789", "vxlan id 9 dev eth1 dstport 8472", "vxlan id 1 dev eth1 dstport 8472")
	g.run("ip link add vx9 type "+how, "ip addr add 172.30.0.1/24 dev vx9", "ip link set vx9 up")
	return how
}

func (g *guest) vlan() string {
	prefix := g.pick("172.31.0.1/24", "10.244.202.1/24")
	g.run("ip link add br7 type bridge", "ip link add bp7 type veth peer name bq7", "ip link set bp7 master br7 up", "ip link set bq7 up",
		"ip link set br7 up", "ip addr add "+prefix+" dev br7")
	return "bridge with " + prefix
}

// possible reports whether the kernel has a kind of device.
func (g *guest) possible(kind string) bool {
	_, err := g.node.Exec(g.Context(), "sh", "-c", "ip link add probe0 type "+kind+" && ip link del probe0")
	return err == nil
}

// bond gives two NICs that are one, of which one is plugged in.
func (g *guest) bond() string {
	if !g.possible("bond") {
		return "this kernel has none"
	}
	g.plug("slave0", "bonded", netip.MustParsePrefix("172.27.0.1/24"), netip.MustParsePrefix("172.27.0.2/24"))
	g.run("ip link add bond0 type bond mode active-backup miimon 100", "ip link set slave0 down", "ip addr flush dev slave0",
		"ip link set slave0 master bond0", "ip link set slave0 up", "ip link set bond0 up", "ip addr add 172.27.0.1/24 dev bond0")
	return "172.27.0.1/24"
}

// dot1q gives a VLAN of a NIC, with an address of each, and the VLAN's among the pods' network.
func (g *guest) dot1q() string {
	if !g.possible("vlan id 7 link lo") {
		return "this kernel has none"
	}
	g.plug("trunk0", "tagged", netip.MustParsePrefix("172.26.0.1/24"), netip.MustParsePrefix("172.26.0.2/24"))
	g.run("ip link add link trunk0 name trunk0.7 type vlan id 7", "ip link set trunk0.7 up", "ip addr add 10.244.204.1/24 dev trunk0.7")
	return "trunk0.7 with 10.244.204.1/24"
}

func (g *guest) alias() string {
	g.plug("odd0", "odd", netip.MustParsePrefix("172.29.0.1/24"), netip.MustParsePrefix("172.29.0.2/24"))
	g.run("ip link set odd0 alias twill")
	return "a device that is called twill"
}

// asks reports whether an address that has to answer is in a network.
func (g *guest) asks(network netip.Prefix) bool {
	return slices.ContainsFunc(g.probes, func(p probe) bool { return network.Contains(p.to) })
}

// later is what happens on the host while Twill is there: what it brings must live too.
func (g *guest) later() {
	if g.dhcp != nil && g.rand.IntN(2) == 0 {
		g.Log("later: another address by DHCP")
		g.move()
		g.was = g.look()
	}
	if g.rand.IntN(2) == 0 {
		return
	}
	prefix := g.pick("172.18.0.1/16", "10.244.203.1/24", "10.244.2.99/24")
	if g.asks(netip.MustParsePrefix(prefix)) {
		prefix = "172.18.0.1/16" // the other one would take the host's own neighbours away, with and without Twill
	}
	g.Logf("later: a network %s", prefix)
	g.run("ip link add late0 type bridge", "ip link add late1 type veth peer name late2", "ip link set late1 master late0 up",
		"ip link set late2 up", "ip link set late0 up", "ip addr add "+prefix+" dev late0")
	g.was = g.look()
}
