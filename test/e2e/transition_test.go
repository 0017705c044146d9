package e2e

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// way is a backend that a cluster gets, and the device that is left of it and of those before when all nodes have followed.
type way struct {
	conf, device string
	known        bool // peers are told of it half a minute before they use it
	most         int  // how many packets of a stream may be lost on the way there
}

// The ways. The second port needs the device made again at the end, since two devices of one VNI have two names.
var (
	vxlan1    = way{conf: `{"Type":"vxlan"}`, device: "flannel.1"}
	vxlan7    = way{conf: `{"Type":"vxlan","VNI":7}`, device: "flannel.7"}
	otherPort = way{conf: `{"Type":"vxlan","VNI":7,"Port":4789}`, device: "flannel.7", most: madeAgain}
	strict1   = way{conf: `{"Type":"vxlan","Strict":true}`, device: "flannel.1"}
	strict7   = way{conf: `{"Type":"vxlan","VNI":7,"Strict":true}`, device: "flannel.7"}
	hostgw    = way{conf: `{"Type":"host-gw"}`}
	encrypted = way{conf: `{"Type":"wireguard"}`, device: "flannel-wg", known: true}
	inUDP     = way{conf: `{"Type":"udp"}`, device: "flannel0", known: true}
	inIP      = way{conf: `{"Type":"ipip"}`, device: "flannel.ipip"}
)

// How many packets of a stream may be lost.
const (
	// madeAgain is for a device that is deleted and made again on both nodes.
	madeAgain = 100
	// oneSided is for NICs with a strict reverse path check. A packet that comes plain is dropped while the route back leads
	// through a tunnel, as it does from when one node of a pair has moved to when the other has.
	oneSided = 200
	// restarted is for an agent that is restarted while it moves the packets itself, at each end of a stream.
	restarted = 1000
)

// with returns a way that may cost so many packets.
func (w way) with(most int) way {
	w.most = most
	return w
}

// changes are clusters that get one backend after the other, under what else a cluster may have.
var changes = []change{
	{name: "plain", ways: []way{vxlan1, vxlan7, otherPort}},
	{name: "dual", spec: lab.Spec{Family: lab.Dual}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "rpfilter", ways: []way{vxlan1, hostgw.with(oneSided), vxlan7.with(oneSided)},
		onNode: "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth1.rp_filter=1"},
	{name: "iptables", keys: `"EnableNFTables": false,`, ways: []way{vxlan1, vxlan7, hostgw}},
	{name: "policies", spec: lab.Spec{NetworkPolicy: true}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "strict", ways: []way{strict1, strict7, hostgw}},
	{name: "fastpath", spec: lab.Spec{FastPath: true}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "wireguard", ways: []way{vxlan1, encrypted, vxlan1.with(restarted)}, onNode: noClearText},
	{name: "udp", ways: []way{hostgw, inUDP, vxlan1.with(restarted)}},
	{name: "kube", spec: lab.Spec{Store: lab.Kube}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "ipip", ways: []way{vxlan1, inIP, hostgw, inIP}, emulated: true},
	{name: "kernelwg", ways: []way{vxlan1, encrypted, vxlan1, encrypted}, onNode: noClearText, emulated: true},
}

// noClearText drops what pods send each other as it is: what leaves so is lost.
const noClearText = `nft add table ip clear; add chain ip clear out { type filter hook postrouting priority 0; };
	add rule ip clear out oifname "eth1" ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 drop`

// change is a cluster that gets one backend after the other.
type change struct {
	name   string
	spec   lab.Spec
	keys   string // of the network config, beside those of the networks and the backend
	ways   []way  // the first is what the cluster has before
	onNode string // a command for each node

	emulated bool // it needs a kernel that not every machine has
}

// changing is a cluster whose backend is changed.
type changing struct {
	cluster
	change
	streams []*host.Stream
	marks   []host.Mark
	overrun int // what the machine had dropped at these marks
}

// TestTransition changes clusters' backends node by node, as a DaemonSet's rollout does, under pings between all pods, and once
// back in the middle: none is lost but where a device has to be made again. The clusters wait together.
func TestTransition(t *testing.T) {
	var all []*changing
	for _, change := range changes {
		if change.emulated != emulated {
			continue
		}
		if change.spec.Store == lab.Kube && testing.Short() {
			t.Run(change.name+"/1", func(t *testing.T) { testall.Needs(t, "a built kube-apiserver") }) // as the steps are named
			continue
		}
		all = append(all, startChange(t, change))
	}
	rollOut(t, all, 1, 1)
	rollOut(t, all, 0, 1)
	for step := 1; step < len(all[0].ways); step++ {
		rollOut(t, all, step, 3)
		if slices.ContainsFunc(all, func(c *changing) bool { return c.ways[step].known }) {
			testwait.Pause(t, 30*time.Second, "a way that peers have to know is not used before they do")
		}
		testwait.Pause(t, 30*time.Second, "a way that is not needed any more stays for half a minute")
		for _, c := range all {
			t.Run(fmt.Sprintf("%s/%d", c.name, step), func(t *testing.T) { c.arrived(t, c.ways[step]) })
		}
	}
}

// startChange brings a cluster up, with pings between all pods.
func startChange(t *testing.T, of change) *changing {
	spec := of.spec
	spec.Name, spec.Store, spec.Nodes, spec.Pods = "change"+of.name, cmp.Or(spec.Store, lab.File), 3, 1
	c := &changing{change: of}
	spec.NetConf = c.netConf(spec.Family, c.ways[0])
	c.cluster = cluster{t, labtest.Up(t, spec)}
	for _, n := range c.lab.Nodes() {
		if c.onNode != "" {
			c.exec(n, c.onNode)
		}
	}
	if spec.NetworkPolicy {
		c.must(c.lab.ApplyManifest("from-pods.yaml", []byte(fromPods)))
	}
	c.matrix() // up returns before all nodes have followed each other
	c.streams = c.allStreams()
	c.marks, c.overrun = marks(c.streams), labtest.Overrun(t)
	return c
}

// netConf is the network config with a backend.
func (c *changing) netConf(family string, w way) []byte {
	networks := `"Network": "10.244.0.0/16",`
	if family == lab.Dual {
		networks += `"EnableIPv6": true, "IPv6Network": "fd00:244::/56", "IPv6SubnetLen": 64,`
	}
	return fmt.Appendf(nil, `{%s %s "Backend": %s}`, networks, c.keys, w.conf)
}

// rollOut gives the first nodes of all clusters the config of a step, one after the other.
func rollOut(t *testing.T, all []*changing, step, nodes int) {
	for _, c := range all {
		c.must(c.lab.SetNetConf(t.Context(), c.netConf(c.lab.Spec().Family, c.ways[step])))
	}
	for i := range nodes {
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				if err := c.lab.Nodes()[i].RestartAgent(t.Context()); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			})
		}
		wg.Wait()
		testwait.Pause(t, 2*time.Second, "as a rollout waits for its next batch")
	}
}

// arrived fails the test if a cluster has more than a way needs, or lost packets since it was asked last.
func (c *changing) arrived(t *testing.T, to way) {
	now := cluster{t, c.lab}
	testwait.Nil(t, "the nodes have no more than "+to.conf+" needs", func() error {
		for _, n := range c.lab.Nodes() {
			out := now.exec(n, "ip -o link show")
			for _, dev := range []string{"flannel.1", "flannel.7", "flannel-p", "flannel-wg", "flannel0", "flannel.ipip"} {
				if has := strings.Contains(out, " "+dev); has != (to.device == dev) {
					return fmt.Errorf("%s: %s", n.Name, out)
				}
			}
		}
		return nil
	})
	for _, n := range c.lab.Nodes() {
		said, err := n.Ask(t.Context(), "/status")
		if err != nil || c.spec.FastPath && !strings.Contains(said, `"fastPath":{"on":true`) {
			t.Errorf("%s: %s, %v", n.Name, said, err)
		}
		log, err := os.ReadFile(n.Log())
		if err != nil || strings.Contains(string(log), `msg="run the backend"`) {
			t.Errorf("%s: what moves the packets was started before its device, or outlived it: %v", n.Name, err)
		}
		if plan := now.execArgs(n, n.DryRun()); !strings.Contains(plan, "# nothing to change") {
			t.Errorf("%s: %s", n.Name, plan)
		}
	}
	now.matrix()
	overrun := labtest.Overrun(t)
	excused := overrun - c.overrun // of all streams together
	c.overrun = overrun
	for i, s := range c.streams {
		end := s.Mark()
		loss, err := s.Between(t.Context(), c.marks[i], end)
		c.marks[i] = end
		t.Logf("to %s: %s, sent every %s", to.conf, loss, pingInterval)
		beyond := max(loss.Lost-to.most, 0)
		if err != nil || beyond > excused {
			t.Errorf("to %s: %s, want at most %d lost beside %d that the machine dropped: %v", to.conf, loss, to.most, excused, err)
		}
		excused = max(excused-beyond, 0)
	}
}

// fromPods lets all pods reach each other, and nobody else reach them.
const fromPods = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-pods}
spec:
  podSelector: {}
  ingress: [{from: [{podSelector: {}}]}]
`

// allStreams are pings between all pods.
func (c cluster) allStreams() (all []*host.Stream) {
	for i := range c.lab.Pods() {
		for j, p := range c.lab.Pods() {
			if i == j {
				continue
			}
			for _, addr := range p.Addrs {
				s, err := c.pod(i+1).Stream(addr, pingInterval)
				c.must(err)
				c.Cleanup(s.Close)
				all = append(all, s)
			}
		}
	}
	return all
}
