package firewall

import (
	"fmt"
	"net"
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
	family                 netstate.Family
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
		netstate.IPv4, "10.244.0.0/16", "10.244.1.0/24", "10.244.1.2", "10.244.1.1", "10.244.1.0", "172.30.0.2", "172.30.0.1",
		"192.168.7.1", "192.168.7.9", "192.168.7.2", "10.244.2.2", "10.244.3.2", "239.1.1.1", 32, 24,
	},
	{
		netstate.IPv6, "fd00:244::/44", "fd00:244:1::/64", "fd00:244:1::2", "fd00:244:1::1", "fd00:244:1::",
		"fd00:30::2", "fd00:30::1",
		"fd00:7::1", "fd00:7::9", "fd00:7::2", "fd00:244:2::2", "fd00:244:3::2", "ff05::77", 128, 64,
	},
}

// wire builds a world around the test's own namespace, which is the node.
func (w world) wire(t *testing.T, pod, outside *space) {
	addr := func(dev, a string, bits int) string {
		if w.family == netstate.IPv6 {
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
		all("cluster address to multicast",
			shot{from: node, to: outside, src: w.vtep, dst: w.multicast, dev: "eth0"}, w.vtep),
	}
}

// want is the source that a receiver should see.
func (p packet) want(keep backend.KeepLocal) string {
	return map[backend.KeepLocal]string{
		backend.KeepRouted: p.routed, backend.KeepAlways: p.always, backend.KeepNever: p.never,
	}[keep]
}

func config(mode netstate.Mode, keep backend.KeepLocal) netstate.State {
	cfg := backend.FirewallConfig{Mode: mode, Masq: true, Random: true, Forward: backend.ForwardOn, KeepLocal: keep}
	for _, w := range worlds {
		cfg.Stacks = append(cfg.Stacks, backend.FirewallStack{
			Cluster: netip.MustParsePrefix(w.cluster), Pod: netip.MustParsePrefix(w.podNet), Overlays: []string{"flannel.1"},
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
		decide(t, g, f, pod, outside)
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

// decide lets other programs decide what is forwarded, before the agent comes and after each of its repairs: whatever
// stands before ours stays in force, and a firewall that ends in a REJECT or in the policy DROP lets pods talk.
func decide(t *testing.T, g ground, f *Firewall, pod, outside *space) {
	want := config(g.mode, backend.KeepRouted)
	for _, c := range []struct {
		name, rules string // of FORWARD, without ours; POLICIES rejects what the pod sends
		talk        bool
	}{
		{"a policy engine's jump", "J", false},
		{"an administrator's rule for one pod", "c", false},
		{"an administrator's rule, at the end of others", "J0 c", false},
		{"a firewall's last rule", "R", true},
		{"a firewall's last rules", "J0 D R", true},
		{"the policy DROP", "", true},
	} {
		for i, b := range g.bases() {
			b.pod = worlds[i].pod
			b.set(t, strings.ReplaceAll(c.rules, "J0", "J"))
			sh(t, b.bin+" -P FORWARD DROP; "+b.bin+" -F POLICIES")
			if c.rules == "J" {
				sh(t, b.bin+" -A POLICIES -s "+b.pod+" -j REJECT")
			}
		}
		for _, moment := range []string{"at first", "after a repair"} {
			settle(t, f, want)
			for _, w := range worlds {
				got, err := shot{from: pod, to: outside, dst: w.routed}.fire()
				if (got == w.pod) != c.talk {
					t.Errorf("%s, %s: a pod's packet to %s came from %s (%v), want it to pass: %v", c.name, moment, w.routed,
						got, err, c.talk)
				}
			}
			for _, b := range g.bases() {
				_, ours := b.lines(t)
				sh(t, b.bin+" -D FORWARD "+ours[0])
			}
		}
	}
	invalid(t, g, f, pod)
	overrule(t, g, f, pod, outside)
}

// invalid sends what belongs to no connection: kube-proxy drops it before ours accept it, because a reply that is not
// translated back resets connections to services.
func invalid(t *testing.T, g ground, f *Firewall, pod *space) {
	for i, b := range g.bases() {
		b.set(t, "J")
		sh(t, b.bin+" -F POLICIES; "+b.bin+" -A POLICIES -m conntrack --ctstate INVALID -j DROP")
		settle(t, f, config(g.mode, backend.KeepRouted))
		var err error
		pod.do(func() {
			var conn net.Conn
			if conn, err = net.Dial("ip:tcp", worlds[i].routed); err == nil {
				defer conn.Close()
				reset := []byte{0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 4, 0, 0, 0, 0, 0, 0} // with no checksum
				_, err = conn.Write(reset)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		rules := ""
		for try := 0; try < 20 && !strings.Contains(rules, "-c 1 "); try++ {
			rules = sh(t, "sleep 0.05; "+b.bin+" -v -S POLICIES")
		}
		if !strings.Contains(rules, "-c 1 ") {
			t.Errorf("%s: the rule against invalid packets has not seen the one:\n%s", b.bin, rules)
		}
	}
}

// overrule asks for the first place.
func overrule(t *testing.T, g ground, f *Firewall, pod, outside *space) {
	for _, b := range g.bases() {
		b.set(t, "D J R")
	}
	want := placed(g.mode, backend.ForwardFirst)
	settle(t, f, want)
	for _, w := range worlds {
		if got, err := (shot{from: pod, to: outside, dst: w.routed}).fire(); got == "nothing" {
			t.Errorf("first: a pod's packet to %s did not arrive (%v)", w.routed, err)
		}
		stranger := shot{from: pod, to: outside, src: w.stranger, dst: w.outside}
		if got, _ := stranger.fire(); got != "nothing" {
			t.Errorf("first: a packet of no pod came from %s, want it dropped: it is no business of ours", got)
		}
	}
	settle(t, f, netstate.State{})
	for _, w := range worlds {
		if got, _ := (shot{from: pod, to: outside, dst: w.routed}).fire(); got != "nothing" {
			t.Errorf("without our rules a packet came from %s, want the DROP to stand", got)
		}
	}
}
