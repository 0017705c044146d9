//go:build soak

package guest

import (
	"embed"
	"fmt"
	"net/netip"
	"strings"
)

// rulesets are what Debian 12's packages write, as nft and iptables-save printed it:
//
//   - firewalld 1.3.3 in its zone public, after --add-port=8472/udp --add-port=51820-51821/udp --add-port=22/tcp, and with
//     the networks of pods in its zone trusted, as it has to be told of any network that is forwarded
//   - ufw 0.36.2, after ufw enable and ufw allow for the same ports
//   - libvirt 9.0.0, after virsh net-start default
//
//go:embed testdata
var rulesets embed.FS

func (g *guest) ruleset(name string) string {
	data, err := rulesets.ReadFile("testdata/" + name)
	g.must(err)
	return string(data)
}

// restore adds a ruleset to what there is.
func (g *guest) restore(name string) {
	for version, program := range map[string]string{"v4": "iptables-restore", "v6": "ip6tables-restore"} {
		var out strings.Builder
		err := g.node.Attach(g.Context(), strings.NewReader(g.ruleset(name+"."+version)), &out, &out, program, "--noflush")
		if err != nil {
			g.Fatalf("%s of %s: %v: %s", program, name, err, out.String())
		}
	}
}

// firewall gives one of the firewalls that hosts have.
func (g *guest) firewall() string {
	switch name := g.pick("nftables.service", "firewalld", "ufw"); name {
	case "firewalld":
		g.must(g.node.LoadRules(g.Context(), g.ruleset("firewalld.nft")))
		return name
	case "ufw":
		g.restore(name)
		return name
	}
	const file = `table inet filter {
		chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; meta l4proto { icmp, ipv6-icmp } accept; udp dport { 8472, 51820, 51821 } accept; tcp dport 22 accept; }
		chain forward { type filter hook forward priority 0; policy %s; }
		chain output { type filter hook output priority 0; policy accept; }
	}`
	policy := g.pick("accept", "accept", "accept; ct state invalid drop")
	g.must(g.node.LoadRules(g.Context(), fmt.Sprintf(file, policy)))
	return "nftables.service: input drop, forward " + policy
}

// libvirt gives its default network, with one machine.
func (g *guest) libvirt() string {
	pod, err := g.node.AddNamespace("machine")
	g.must(err)
	g.run("ip link add virbr0 type bridge", "ip addr add 192.168.122.1/24 dev virbr0", "ip link set virbr0 up",
		"ip link add vnet0 type veth peer name eth0 netns "+pod.Host.Name, "ip link set vnet0 master virbr0 up",
		"sysctl -qw net.ipv4.ip_forward=1")
	for _, c := range []string{"ip link set lo up", "ip link set eth0 up", "ip addr add 192.168.122.34/24 dev eth0",
		"ip route add default via 192.168.122.1"} {
		_, err := pod.Exec(g.Context(), strings.Fields(c)...)
		g.must(err)
	}
	g.restore("libvirt")
	g.probe("libvirt's machine", g.node.Host, netip.MustParseAddr("192.168.122.34"))
	_, outside := g.lab.Outside()
	g.probe("the outside, from libvirt's machine", pod.Host, outside[0])
	return "its default network"
}
