//go:build soak

package guest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// The guest's lease, its peer's, and the network that has both.
const network, own, peer = "10.244.0.0/16", "10.244.1.0/24", "10.244.2.0/24"

// moved are the guest's subnets after its lease has changed.
var moved = map[netstate.Family]netip.Prefix{
	netstate.IPv4: netip.MustParsePrefix("10.244.9.0/24"), netstate.IPv6: netip.MustParsePrefix("fd00:244:0:9::/64"),
}

// works is how a life ends on a host where pods work.
const works = "the host is as it was, and pods work"

// partly is the reason for which pods work, but for those of a peer.
const partly = "local-network"

// reasons are the closed list of why pods cannot work on a host, by what the agent says, each with why no overlay could.
// The first that it says counts: those about devices come first, because an agent that gets so far may say of a peer's
// lease what keeps another from its own.
var reasons = []struct{ says, why string }{
	{"has VNI 1 and UDP port", "the kernel delivers a packet to one of the two devices"},
	{"address already in use", "another program receives what peers send"},
	{"this node's own address", "packets for that address would go to pods, or pods' to the node"},
	{"this node's gateway", "the node would look for its way out among its pods"},
	{"a network of this node", "packets for its hosts would go to pods"},
	{partly, "a peer's pods have the addresses of a network that the host was on first: the other peers are reached"},
}

// guest is one host and Twill's life on it.
type guest struct {
	*testing.T
	rand          *rand.Rand
	backend, mode string
	options       string // of the backend, beside its type
	policies      bool   // agents enforce network policies
	lab           *lab.Lab
	node          *lab.Node
	traits        []string
	probes        []probe
	was           picture
	dhcp          *dhcp // nil: no NIC has its address by DHCP
	beat          int   // beats of its router that the host's life is looked at after; 0: it has none
	idleAtPeer    bool  // a device without a carrier has a peer's subnet
}

// probe is a way on which the host's packets must pass.
type probe struct {
	what string
	from host.Host
	to   netip.Addr
}

func (g *guest) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

// live returns how it ended.
func (g *guest) live() string {
	g.policies = g.rand.IntN(2) == 0
	g.up()
	g.draw()
	g.Logf("the host: %s", strings.Join(g.traits, "; "))
	g.settleFiles()
	g.settle()
	g.was = g.look()
	end := g.start()
	g.check("after the start")
	var pod *lab.Pod
	if end == works {
		pod = g.podWorks("a")
		g.chain()
		g.change(pod)
	}
	g.later()
	g.check("after what came later")
	wasIdle := g.idleAtPeer
	g.follow(pod)
	mended := wasIdle && !g.idleAtPeer
	g.must(g.node.KillAgent())
	g.check("without an agent")
	if again := g.start(); again != end && (!mended || again != works) {
		g.Errorf("at first %s, after a restart %s", end, again)
	}
	g.check("after the restart")
	if pod != nil {
		g.podReaches(pod)
		g.chained("after the restart")
		g.must(g.node.DelPod(g.Context(), pod))
		g.changeLease()
		g.switchBackend()
		g.chained("at the end")
	}
	g.must(g.node.StopAgent(g.Context()))
	g.cleanUp()
	g.check("after --cleanup")
	return end
}

// cleanUp removes the guest.
func (g *guest) cleanUp() {
	g.Helper()
	_, err := g.node.Exec(g.Context(), append(g.node.CleanupCommand(), "--cni-conf-file="+filepath.Join(g.netDir(), conflistName))...)
	g.must(err)
}

// changeLease has the node hold other subnets when its agent starts again.
func (g *guest) changeLease() {
	g.must(g.node.StopAgent(g.Context()))
	g.must(g.lab.EditLeases(func(leases []subnet.Lease) []subnet.Lease {
		for _, l := range leases {
			for i := range l.Stacks {
				if l.Node == g.node.Name {
					l.Stacks[i].Subnet = moved[l.Stacks[i].Family()]
				}
			}
		}
		return leases
	}))
	g.goesOn("with another lease")
}

// switchBackend has both nodes use the next backend, the peer before this one. While this node's agent runs, it follows the
// peer; one that stopped before finds it changed.
func (g *guest) switchBackend() {
	i := slices.IndexFunc(kinds, func(k struct{ backend, mode string }) bool { return k.backend == g.backend })
	g.backend = kinds[(i+1)%3].backend
	g.must(os.WriteFile(filepath.Join(g.lab.Dir(), "net-conf.json"), g.conf(), 0o644))
	steps := []func(context.Context) error{g.node.StopAgent, g.lab.Nodes()[1].RestartAgent}
	for _, i := range g.rand.Perm(2) {
		g.must(steps[i](g.Context()))
	}
	g.goesOn("with the backend " + g.backend)
}

// goesOn starts the agent again: it may find a reason by now why pods cannot work, and else a new pod does.
func (g *guest) goesOn(how string) {
	g.Helper()
	if end := g.start(); end == works {
		pod := g.podWorks("b")
		g.must(g.node.DelPod(g.Context(), pod))
	} else {
		g.Logf("%s: %s", how, end)
	}
	g.check(how)
}

// up makes a lab of two nodes, and of the first a host on which Twill has never been.
func (g *guest) up() {
	subnets := func(v4, v6 string) lab.Site {
		return lab.Site{Subnets: []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}}
	}
	g.lab = labtest.Start(g, lab.Spec{Name: "guest", Nodes: 2, Pods: 1, Backend: g.backend, Family: lab.Dual, Store: lab.File,
		NetworkPolicy: g.policies, NetConf: g.conf(), Agents: map[string]string{"node1": g.agent()},
		Sites: map[string]lab.Site{"node1": subnets(own, "fd00:244:0:1::/64"), "node2": subnets(peer, "fd00:244:0:2::/64")}})
	g.node = g.lab.Nodes()[0]
	for _, p := range g.node.Pods() {
		g.must(g.node.DelPod(g.Context(), p))
	}
	g.must(g.node.StopAgent(g.Context()))
	g.cleanUp()
	for _, f := range []string{g.node.SubnetFile(), g.node.CheckpointFile()} {
		if err := os.Remove(f); err != nil && !os.IsNotExist(err) {
			g.Fatal(err)
		}
	}
	g.run("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
	router, peer := g.lab.Router(), g.lab.Nodes()[1]
	for _, a := range peer.Underlay() {
		g.probe("the peer's address", g.node.Host, a)
	}
	for _, a := range g.node.Underlay() {
		g.probe("the node, from the router", router, a)
	}
	_, outside := g.lab.Outside()
	for _, a := range outside {
		g.probe("the outside", g.node.Host, a)
	}
}

// conf is the network config of both nodes.
func (g *guest) conf() []byte {
	return fmt.Appendf(nil, `{"Network": %q, "IPv6Network": "fd00:244::/56", "EnableIPv6": true, "EnableNFTables": %t, "Backend": {"Type": %q%s}}`,
		network, g.mode == "nftables", g.backend, g.options)
}

func (g *guest) probe(what string, from host.Host, to netip.Addr) {
	g.probes = append(g.probes, probe{what, from, to})
}

// run runs commands on the host.
func (g *guest) run(commands ...string) {
	g.Helper()
	for _, c := range commands {
		if _, err := g.node.Exec(g.Context(), "sh", "-c", c); err != nil {
			g.Fatalf("%s: %v", c, err)
		}
	}
}

// settle leaves out ways that do not work on this host before Twill comes.
func (g *guest) settle() {
	time.Sleep(time.Duration(g.beat) * beat)
	testwait.Until(g, "the peer's address to answer", func() bool { return g.passes(g.probes[0]) == nil })
	g.probes = slices.DeleteFunc(g.probes, func(p probe) bool {
		err := error(nil)
		for range 3 {
			if err = g.passes(p); err == nil {
				return false
			}
		}
		g.Logf("%s (%s) does not answer on this host: %v", p.what, p.to, err)
		return true
	})
}

func (g *guest) passes(p probe) error {
	_, err := p.from.Ping(g.Context(), host.Ping{To: p.to, Timeout: 2 * time.Second})
	return err
}

// start starts the agent and returns how it ended: it is ready, or says one of the reasons.
func (g *guest) start() string {
	g.Helper()
	before, _ := os.ReadFile(g.node.Log())
	ctx, cancel := context.WithTimeout(g.Context(), 20*time.Second)
	defer cancel()
	ready := g.node.StartAgent(ctx) == nil
	log, err := os.ReadFile(g.node.Log())
	g.must(err)
	const says = "the host is as it was, and the agent says: "
	switch {
	case ready && strings.Contains(string(log[len(before):]), partly):
		return says + partly
	case ready:
		return works
	}
	for _, reason := range reasons {
		if strings.Contains(string(log[len(before):]), reason.says) {
			return says + reason.says
		}
	}
	g.Errorf("pods do not work, and the agent does not say why:\n%s", log[len(before):])
	return "pods do not work, for no known reason"
}

// check looks whether the host is as it was.
func (g *guest) check(when string) {
	g.Helper()
	g.renew()
	time.Sleep(time.Duration(g.beat) * beat) // what lives on advertisements has ended if they are ignored
	for _, p := range g.probes {
		err := error(nil)
		for range 3 {
			if err = g.passes(p); err == nil {
				break
			}
		}
		if err != nil {
			g.Errorf("%s: %s (%s, from %s) does not answer any more: %v", when, p.what, p.to, p.from.Name, err)
		}
	}
	if diff := g.was.differs(g.look()); diff != "" {
		g.Errorf("%s the host is not as it was:\n%s", when, diff)
	}
}

// podWorks adds a pod and returns it.
func (g *guest) podWorks(name string) *lab.Pod {
	g.Helper()
	pod, err := g.node.AddPod(g.Context(), name)
	g.must(err)
	g.podReaches(pod)
	return pod
}

// beyond are addresses that a pod reaches: those of the peer's pod, and one outside.
func (g *guest) beyond() []netip.Addr {
	_, outside := g.lab.Outside()
	return append(slices.Clone(g.lab.Nodes()[1].Pods()[0].Addrs), outside[0])
}

// podReaches fails if a pod does not reach the peer's pod and the outside.
func (g *guest) podReaches(pod *lab.Pod) {
	g.Helper()
	for _, a := range g.beyond() {
		testwait.Nil(g, fmt.Sprintf("the pod to reach %s", a), func() error {
			_, err := pod.Ping(g.Context(), host.Ping{To: a, Timeout: time.Second})
			return err
		})
	}
}
