package firewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// world is the addresses of the three hosts in one family. The node is between a pod and the outside, which
// is a plain host and also a peer with two pods: one is reached without encapsulation, over eth0, the other
// through flannel.1.
type world struct {
	ipv6                   bool
	cluster, podNet        string
	pod, gateway, vtep     string
	stranger, strangerGate string // a container of the node that is not a pod, as of a container bridge
	node, second, outside  string // of the underlay; the node has two addresses there
	routed, encapsulated   string // the peer's pods
	multicast              string
	full, link             int // prefix lengths
}

var worlds = []world{
	{
		false, "10.244.0.0/16", "10.244.1.0/24", "10.244.1.2", "10.244.1.1", "10.244.1.0", "172.30.0.2", "172.30.0.1",
		"192.168.7.1", "192.168.7.9", "192.168.7.2", "10.244.2.2", "10.244.3.2", "239.1.1.1", 32, 24,
	},
	{
		true, "fd00:244::/44", "fd00:244:1::/64", "fd00:244:1::2", "fd00:244:1::1", "fd00:244:1::", "fd00:30::2", "fd00:30::1",
		"fd00:7::1", "fd00:7::9", "fd00:7::2", "fd00:244:2::2", "fd00:244:3::2", "ff05::77", 128, 64,
	},
}

// wire builds a world around the test's own namespace, which is the node.
func (w world) wire(t *testing.T, pod, outside *space) {
	addr := func(dev, a string, bits int) string {
		if w.ipv6 {
			return fmt.Sprintf("ip addr add %s/%d dev %s nodad\n", a, bits, dev)
		}
		return fmt.Sprintf("ip addr add %s/%d dev %s\n", a, bits, dev)
	}
	spare := func(dev, a string) string { // an address that IPv6 does not choose by itself
		return strings.TrimSpace(addr(dev, a, w.link)) + " preferred_lft 0\n"
	}
	sh(t, addr("cni0", w.gateway, w.link)+spare("cni0", w.strangerGate)+addr("flannel.1", w.vtep, w.full)+
		addr("eth0", w.node, w.link)+spare("eth0", w.second)+
		"ip route add "+w.routed+" via "+w.outside+"\nip route add "+w.encapsulated+" dev flannel.1\n")
	pod.sh(t, addr("eth0", w.pod, w.link)+spare("eth0", w.stranger)+"ip route add default via "+w.gateway)
	outside.sh(t, addr("eth0", w.outside, w.link)+addr("lo", w.routed, w.full)+addr("flannel.1", w.encapsulated, w.full)+
		"ip route add "+w.podNet+" via "+w.node+"\nip route add "+w.strangerGate+" via "+w.node+
		"\nip route add "+w.vtep+" dev flannel.1")
}

// links makes the node's three links.
func links(t *testing.T, pod, outside *space) {
	const noDAD = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad\n"
	pod.sh(t, noDAD)
	outside.sh(t, noDAD)
	sh(t, "set -e\n"+noDAD+fmt.Sprintf(`
		ip link set lo up
		ip link add cni0 type veth peer name eth0 netns %[1]s
		ip link add eth0 type veth peer name eth0 netns %[2]s
		ip link add flannel.1 type veth peer name flannel.1 netns %[2]s
		for dev in cni0 eth0 flannel.1; do ip link set $dev up; done
		for f in all default eth0 flannel.1; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done
		echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`, pod.path, outside.path))
	pod.sh(t, "ip link set lo up; ip link set eth0 up")
	outside.sh(t, "for dev in lo eth0 flannel.1; do ip link set $dev up; done\n"+
		"for f in all eth0 flannel.1; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done")
}

// packet is one case: the source that the receiver sees, with flannel and as the choices of KeepLocal go.
type packet struct {
	name                  string
	shot                  shot
	routed, always, never string
}

func (w world) packets(pod, outside *space) []packet {
	all := func(name string, s shot, seen string) packet { return packet{name, s, seen, seen, seen} }
	node := home()
	return []packet{
		all("pod to outside", shot{from: pod, to: outside, dst: w.outside}, w.node),
		all("pod to routed pod", shot{from: pod, to: outside, dst: w.routed}, w.pod),
		all("pod to encapsulated pod", shot{from: pod, to: outside, dst: w.encapsulated}, w.pod),
		all("outside to pod", shot{from: outside, to: pod, src: w.outside, dst: w.pod}, w.outside),
		all("remote pod to pod", shot{from: outside, to: pod, src: w.routed, dst: w.pod}, w.routed),
		all("node to own pod", shot{from: node, to: pod, src: w.second, dst: w.pod}, w.second),
		all("node to outside", shot{from: node, to: outside, src: w.second, dst: w.outside}, w.second),
		all("node, free to choose, to routed pod", shot{from: node, to: outside, dst: w.routed}, w.node),
		all("node, free to choose, to encapsulated pod", shot{from: node, to: outside, dst: w.encapsulated}, w.vtep),
		{"node to routed pod", shot{from: node, to: outside, src: w.second, dst: w.routed}, w.second, w.second, w.node},
		{
			"node to encapsulated pod", shot{from: node, to: outside, src: w.second, dst: w.encapsulated},
			w.vtep, w.second, w.vtep,
		},
		all("stranger to routed pod", shot{from: pod, to: outside, src: w.stranger, dst: w.routed}, w.node),
		all("stranger to encapsulated pod", shot{from: pod, to: outside, src: w.stranger, dst: w.encapsulated}, w.vtep),
		all("stranger to outside", shot{from: pod, to: outside, src: w.stranger, dst: w.outside}, w.stranger),
		all("marked", shot{from: node, to: outside, src: w.second, dst: w.encapsulated, mark: 0x4000}, w.second),
		all("marked and more", shot{from: node, to: outside, src: w.second, dst: w.encapsulated, mark: 0xc001}, w.second),
		{
			"marked otherwise", shot{from: node, to: outside, src: w.second, dst: w.encapsulated, mark: 0x8000},
			w.vtep, w.second, w.vtep,
		},
		all("cluster address to outside", shot{from: node, to: outside, src: w.vtep, dst: w.outside}, w.node),
		all("cluster address to multicast", shot{from: node, to: outside, src: w.vtep, dst: w.multicast, dev: "eth0"}, w.vtep),
	}
}

// want is the source that a receiver should see.
func (p packet) want(keep backend.KeepLocal) string {
	return map[backend.KeepLocal]string{
		backend.KeepRouted: p.routed, backend.KeepAlways: p.always, backend.KeepNever: p.never,
	}[keep]
}

func config(mode netstate.Mode, keep backend.KeepLocal) netstate.State {
	cfg := backend.FirewallConfig{Mode: mode, Masq: true, Random: true, Forward: true, KeepLocal: keep}
	for _, w := range worlds {
		cfg.Stacks = append(cfg.Stacks, backend.FirewallStack{
			Cluster: netip.MustParsePrefix(w.cluster), Pod: netip.MustParsePrefix(w.podNet), Overlay: "flannel.1",
		})
	}
	return netstate.NewState(backend.FirewallChains(cfg)...)
}

// TestPackets sends real packets through a node and looks at the source addresses that arrive: the same ones
// with each kernel interface.
func TestPackets(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "ip", "nsenter", "iptables-nft", "ip6tables-nft")
		pod, outside := newSpace(t), newSpace(t)
		links(t, pod, outside)
		for _, w := range worlds {
			w.wire(t, pod, outside)
		}
		for _, keep := range []backend.KeepLocal{backend.KeepRouted, backend.KeepAlways, backend.KeepNever} {
			settle(t, f, config(g.mode, keep))
			for _, w := range worlds {
				expect(t, w.packets(pod, outside), keep)
			}
		}
		overrule(t, g, f, pod, outside)
	})
}

func expect(t *testing.T, packets []packet, keep backend.KeepLocal) {
	t.Helper()
	for _, p := range packets {
		got, err := p.shot.fire()
		if want := p.want(keep); got != want || err != nil {
			t.Errorf("keep %s, %s to %s: the source is %s (%v), want %s", keep, p.name, p.shot.dst, got, err, want)
		}
	}
}

// overrule has another program drop whatever is forwarded, by policy and by a rule.
func overrule(t *testing.T, g ground, f *Firewall, pod, outside *space) {
	bin := "iptables-nft"
	if g.name == "iptables-legacy" {
		bin = g.name
	}
	bins := []string{bin, strings.Replace(bin, "iptables", "ip6tables", 1)}
	for _, b := range bins {
		sh(t, b+" -P FORWARD DROP; "+b+" -I FORWARD -j REJECT")
	}
	for _, w := range worlds {
		blocked := shot{from: pod, to: outside, dst: w.routed}
		if got, err := blocked.fire(); got != "nothing" {
			t.Errorf("with REJECT before us a packet came from %s (%v), want none: the test proves nothing", got, err)
		}
	}
	settle(t, f, config(g.mode, backend.KeepRouted))
	for _, w := range worlds {
		packets := w.packets(pod, outside)
		for i := range packets {
			if strings.HasPrefix(packets[i].name, "stranger to outside") {
				packets[i].routed = "nothing" // it is no business of ours
			}
		}
		expect(t, packets, backend.KeepRouted)
	}
	settle(t, f, netstate.State{})
	for _, w := range worlds {
		blocked := shot{from: pod, to: outside, dst: w.routed}
		if got, _ := blocked.fire(); got != "nothing" {
			t.Errorf("without our rules a packet came from %s, want the policy DROP to stand", got)
		}
	}
}
