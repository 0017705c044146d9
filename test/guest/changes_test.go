//go:build soak

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
)

// change is something that a cluster's life brings to a host where pods work.
type change struct {
	name string
	// make makes it, and returns what takes it back, nil if there is nothing.
	make func(*guest) (back func())
	// on reports whether this host's Twill knows it; nil: each does.
	on func(*guest) bool
}

// changes are drawn in any order, each with a chance of one in two. A pod that was there before them works with each and
// after it.
var changes = []change{
	{"another VNI", func(g *guest) func() { return g.option(`, "VNI": 7`) }, isVXLAN},
	{"a smaller MTU", func(g *guest) func() { return g.option(`, "MTU": 1400`) }, func(g *guest) bool { return g.backend != "host-gw" }},
	{"direct routes", func(g *guest) func() { return g.option(`, "DirectRouting": true`) }, isVXLAN},
	{"a policy", (*guest).policy, func(g *guest) bool { return g.policies }},
	{"the store away", (*guest).storeAway, nil},
	{"the reservations' lock held", (*guest).lockReservations, nil},
	{"Twill's rules deleted", (*guest).deleteRules, nil},
	{"the bridge's address deleted", (*guest).deleteAddress, nil},
	{"the peer's agent killed", (*guest).killPeer, func(g *guest) bool { return g.backend != "wireguard" }}, // it may move the packets
}

func isVXLAN(g *guest) bool { return g.backend == "vxlan" }

// change draws changes, and holds the host and a pod against each.
func (g *guest) change(pod *lab.Pod) {
	for _, i := range g.rand.Perm(len(changes)) {
		c := changes[i]
		if g.rand.IntN(2) == 0 || c.on != nil && !c.on(g) {
			continue
		}
		g.Logf("the cluster: %s", c.name)
		back := c.make(g)
		g.podReaches(pod)
		g.check("with " + c.name)
		if back != nil {
			back()
			g.podReaches(pod)
			g.check("after " + c.name)
		}
	}
}

// option gives the backend an option, node by node, and takes it away again.
func (g *guest) option(text string) (back func()) {
	g.rollOut(text)
	return func() { g.rollOut("") }
}

// rollOut restarts both agents with an option of the backend, the one or the other first.
func (g *guest) rollOut(option string) {
	g.options = option
	g.must(os.WriteFile(filepath.Join(g.lab.Dir(), "net-conf.json"), g.conf(), 0o644))
	for _, i := range g.rand.Perm(2) {
		g.must(g.lab.Nodes()[i].RestartAgent(g.Context()))
	}
}

// policies are drawn: all let the pods of both nodes reach each other and the outside.
var policies = []string{
	`{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`,
	`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: "::/0"}}]}]}`,
	`{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`,
}

func (g *guest) policy() (back func()) {
	text := fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: drawn}\nspec: %s\n", g.pick(policies...))
	g.must(g.lab.ApplyManifest("drawn.yaml", []byte(text)))
	return func() { g.must(g.lab.DeleteManifest("drawn.yaml")) }
}

// storeAway renames the file of the leases for as long as agents read it several times.
func (g *guest) storeAway() (back func()) {
	path := filepath.Join(g.lab.Dir(), "leases.json")
	g.must(os.Rename(path, path+".away"))
	time.Sleep(3 * time.Second)
	return func() { g.must(os.Rename(path+".away", path)) }
}

func (g *guest) lockReservations() (back func()) {
	f, err := os.OpenFile(filepath.Join(g.node.Dir(), "networks", "cbr0", "lock"), os.O_CREATE|os.O_RDONLY, 0o600)
	g.must(err)
	g.must(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	time.Sleep(time.Second)
	return func() { g.must(f.Close()) }
}

// deleteRules deletes the tables or chains of the pods' network.
func (g *guest) deleteRules() func() {
	if g.mode == "iptables" {
		g.run("iptables -t nat -F FLANNEL-POSTRTG", "ip6tables -t nat -F FLANNEL-POSTRTG", "iptables -F FLANNEL-FWD")
	} else {
		g.run("nft delete table ip flannel-ipv4", "nft delete table ip6 flannel-ipv6")
	}
	return nil
}

func (g *guest) killPeer() (back func()) {
	peer := g.lab.Nodes()[1]
	g.must(peer.KillAgent())
	return func() { g.must(peer.StartAgent(g.Context())) }
}

func (g *guest) deleteAddress() func() {
	g.run("ip addr del $(ip -4 -o addr show dev cni0 | awk '{ print $4; exit }') dev cni0")
	return nil
}
