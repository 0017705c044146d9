package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// flannelFirewall is what flannel v0.28 writes in its iptables mode, for a node with the subnet POD.
const flannelFirewall = `
iptables -w -t nat -N FLANNEL-POSTRTG
iptables -w -t nat -A POSTROUTING -m comment --comment flanneld_masq -j FLANNEL-POSTRTG
iptables -w -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment flanneld_masq -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s POD -d 10.244.0.0/16 -m comment --comment flanneld_masq -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d POD -m comment --comment flanneld_masq -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d POD -m comment --comment flanneld_masq -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment flanneld_masq -j MASQUERADE
iptables -w -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment flanneld_masq -j MASQUERADE
iptables -w -N FLANNEL-FWD
iptables -w -A FORWARD -m comment --comment flanneld_forward -j FLANNEL-FWD
iptables -w -A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment flanneld_forward -j ACCEPT
iptables -w -A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment flanneld_forward -j ACCEPT`

// TestTakeOver makes a node look as a live flannel agent has left it (links without a mark, routes of protocol
// boot, its iptables chains, entries of a node that left), with nothing that Twill remembers, and starts twilld
// while pods ping each other.
func TestTakeOver(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		for _, store := range []string{lab.Kube, lab.Etcd} {
			t.Run(backend+"/"+store, func(t *testing.T) {
				spec := lab.Spec{Name: "take" + strings.ReplaceAll(backend, "-", "") + store, Backend: backend, Store: store, Nodes: 2, Pods: 1}
				c := cluster{t, labtest.Start(t, spec)}
				c.matrix()
				c.takeOver()
			})
		}
	}
}

func (c cluster) takeOver() {
	node, pod, peer := c.lab.Nodes()[0], c.pod(1), c.pod(2)
	stream, err := pod.Stream(peer.Addrs[0], 10*time.Millisecond)
	c.must(err)
	defer stream.Close()
	begin := stream.Mark()
	c.must(node.KillAgent())
	c.becomeFlannels(node)
	links := c.exec(node, "ip -o link show")
	c.must(node.StartAgent(c.Context()))
	c.goesOn(stream, 50)
	loss, err := stream.Between(c.Context(), begin, stream.Mark())
	if err != nil || loss.Lost > 0 || loss.Sent < 50 {
		c.Errorf("lost %s: %v", loss, err)
	}
	c.matrix()
	if now := c.exec(node, "ip -o link show"); strings.ReplaceAll(now, `\    alias twill`, "") != links {
		c.Errorf("links were\n%sand are\n%s", links, now)
	}
	if routes := c.exec(node, "ip route show proto boot"); strings.Contains(routes, "10.244.") {
		c.Errorf("flannel's routes are left:\n%s", routes)
	}
	all := c.exec(node, "ip route show") + c.exec(node, "ip neigh show") + c.exec(node, "bridge fdb show")
	if strings.Contains(all, "10.244.254.") || strings.Contains(all, "192.168.33.250") {
		c.Errorf("entries of the node that left are still there:\n%s", all)
	}
	if rules := c.exec(node, "iptables-save"); strings.Contains(rules, "FLANNEL") {
		c.Errorf("flannel's rules are left:\n%s", rules)
	}
}

// becomeFlannels removes what only Twill does from a node, and adds what only flannel does. Traffic goes on.
func (c cluster) becomeFlannels(node *lab.Node) {
	c.must(os.RemoveAll(checkpointOf(node)))
	subnet := node.Subnets()[0].String()
	vxlan := c.lab.Spec().Backend == "vxlan"
	for _, line := range strings.Split(strings.TrimSpace(c.exec(node, "ip route show proto 116")), "\n") {
		c.exec(node, "ip route replace "+line+" proto boot")
	}
	script := strings.ReplaceAll(flannelFirewall, "POD", subnet) + `
nft delete table ip flannel-ipv4
ip link set cni0 alias ` + "\n"
	if vxlan {
		script += `ip link set flannel.1 alias
ip neigh replace 10.244.254.0 lladdr 0e:00:00:00:00:55 dev flannel.1 nud permanent
bridge fdb append 0e:00:00:00:00:55 dev flannel.1 dst 192.168.33.250 self permanent
ip route replace 10.244.254.0/24 via 10.244.254.0 dev flannel.1 onlink`
	} else {
		script += `ip route replace 10.244.254.0/24 via 192.168.33.250 dev eth1`
	}
	for line := range strings.Lines(c.exec(node, "ip -o link show type veth master cni0")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		script += "\nip link set " + name + " alias"
	}
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, " alias") {
			c.execArgs(node, append(strings.Fields(line), ""))
		} else {
			c.exec(node, line)
		}
	}
	if routes := c.exec(node, "ip route show proto 116") + c.exec(node, "ip -o link show"); strings.Contains(routes, "alias twill") || strings.Contains(routes, " via ") {
		c.Fatalf("the node still looks like Twill's:\n%s", routes)
	}
}

// exec runs a command line in a node.
func (c cluster) exec(node *lab.Node, line string) string {
	c.Helper()
	return c.execArgs(node, strings.Fields(strings.ReplaceAll(line, "proto 116 proto", "proto")))
}

func (c cluster) execArgs(node *lab.Node, args []string) string {
	c.Helper()
	out, err := node.Exec(c.Context(), args...)
	c.must(err)
	return out
}

// checkpointOf is where a node's agent keeps its checkpoint.
func checkpointOf(node *lab.Node) string {
	for _, flag := range node.AgentFlags() {
		if path, ok := strings.CutPrefix(flag, "--checkpoint-file="); ok {
			return path
		}
	}
	return ""
}
