package agent

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
)

// programs are a FastPath.
type programs struct {
	mu       sync.Mutex
	why      string
	refuses  error
	extended atomic.Int32
	podGone  atomic.Bool
}

func (p *programs) Extend() error {
	p.extended.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refuses
}

func (p *programs) Blocked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

func (p *programs) set(why string, refuses error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why, p.refuses = why, refuses
}

// podsPort is the port of a pod, as the plugin made it.
var podsPort = netstate.Port{Name: "veth1", Bridge: "cni0", MTU: 1450, Pod: netstate.MAC{2, 0, 0, 0, 0, 9}, Addrs: "10.244.1.7", Up: true}

// withPod is a machine with a pod.
type withPod struct{ *fake.Kernel }

func (m withPod) Interfaces(ctx context.Context) ([]netstate.Interface, error) {
	interfaces, err := m.Kernel.Interfaces(ctx)
	return append(interfaces, netstate.Interface{Name: podsPort.Name, Owned: true, Port: podsPort}), err
}

// withPort is a kernel that has the pod's port, unless the pod has gone.
type withPort struct {
	Kernel
	gone *atomic.Bool
}

func (k withPort) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	state, err := k.Kernel.Observe(ctx, want)
	if err == nil && !k.gone.Load() {
		state.Add(podsPort)
	}
	return state, err
}

// fastNode is a node with a pod and a peer, on which a fast path is wanted.
func fastNode(t *testing.T) (*node, *programs) {
	n, p := newNode(t), &programs{}
	n.tune = func(c *Config) {
		c.Shortcuts, c.FastPath, c.Machine = backend.FastPath{On: true, SkipMark: 2}, p, withPod{n.kernel}
		c.Kernel = withPort{c.Kernel, &p.podGone}
	}
	own := peerLease("node1", "10.244.1.0/24", "192.168.33.101", "0e:00:00:00:00:01")
	n.setPeers(append(n.peers(), own, peerLease("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")))
	return n, p
}

func (n *node) fastPath() string {
	if s := n.agent.report().FastPath; s != nil {
		return s.String()
	}
	return ""
}

const shortcut2, shortcut3 = "shortcut 10.244.2.0/24 encap vxlan id 1", "shortcut 10.244.3.0/24 encap vxlan id 1"

// TestFastPath: it follows peers and pods, one line tells of it, and it is extended as long as all is well.
func TestFastPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := fastNode(t)
		stop := n.start()
		defer stop()
		n.eventually("on", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.ready() })
		for _, want := range []string{shortcut2, "podport 10.244.1.7 dev veth1", "switch skipmark 0x2", "program from_pod dev cni0",
			"program to_pod dev flannel.1"} {
			if !n.has(want) {
				t.Errorf("no %s in\n%s", want, n.state())
			}
		}
		if have, err := n.kernel.Observe(t.Context(), netstate.NewState(liberal)); err != nil || have[liberal.Key()] != liberal {
			t.Errorf("conntrack: %v, %v", have[liberal.Key()], err)
		}
		n.addPeer("node3", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
		n.eventually("a shortcut to node3", func() bool { return n.has(shortcut3) })
		n.setPeers(n.peers()[:2])
		n.eventually("no shortcut to node3", func() bool { return !n.has(shortcut3) })
		if before := p.extended.Load(); before == 0 {
			t.Error("it was not extended")
		} else {
			time.Sleep(2 * resync)
			n.eventually("extended again", func() bool { return p.extended.Load() > before })
		}
		if lines := n.logs("the fast path is"); lines != 1 {
			t.Errorf("%d lines tell of it, want 1:\n%s", lines, n.log.String())
		}
	})
}

// TestPodIsGone: a pod that went after the facts were read is no reason to do without the fast path.
func TestPodIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := fastNode(t)
		p.podGone.Store(true)
		stop := n.start()
		defer stop()
		n.eventually("on", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.ready() && n.has(shortcut2) })
		if n.has("podport") {
			t.Errorf("there is an entry of a pod that is gone:\n%s", n.state())
		}
		p.podGone.Store(false)
		n.agent.trigger() // as the kernel's word of a new veth does
		n.eventually("the pod", func() bool { return n.has("podport 10.244.1.7 dev veth1") })
	})
}

// TestShortcutIsIncremental: a peer's shortcut comes with its route, without another reading of the kernel.
func TestShortcutIsIncremental(t *testing.T) {
	for kind, want := range map[netstate.Object]bool{
		netstate.Shortcut{}: true, netstate.PodPort{}: true, netstate.Program{}: false, netstate.Switch{}: false} {
		if got := (&Agent{}).onlyEntries(netstate.Plan{{Want: kind}}); got != want {
			t.Errorf("%T: %t, want %t", kind, got, want)
		}
	}
}

// TestFastPathIsBlocked: what forbids it takes everything of it away, and it comes back when that has gone.
func TestFastPathIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := fastNode(t)
		p.set("there are IPsec policies", nil)
		stop := n.start()
		defer stop()
		n.eventually("off", func() bool { return n.fastPath() == "off: there are IPsec policies" && n.ready() })
		p.set("", nil)
		n.eventually("on", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.has(shortcut2) })
		p.set("another program's filter is on cni0", nil)
		n.eventually("off again", func() bool {
			return n.fastPath() == "off: another program's filter is on cni0" && !n.has("shortcut") && !n.has("podport") &&
				!n.has("program") && !n.has("switch")
		})
		if !n.has(peerRoute) || !n.ready() {
			t.Errorf("the kernel's path has gone, too:\n%s", n.state())
		}
		p.set("", errors.New("the map is gone"))
		n.agent.trigger()
		n.eventually("not extended", func() bool { return n.fastPath() == "off: extend it: the map is gone" && n.ready() })
	})
}

// TestFastPathIsMadeAnew: a reason that goes when all of the fast path is taken away does not keep it off until the next
// resync, and taking it away needs no word of the store.
func TestFastPathIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := fastNode(t)
		stop := n.start()
		defer stop()
		n.eventually("on", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.ready() })
		time.Sleep(blockedInterval / 2) // so that the loop sees it before the watch does
		p.set("somebody altered its maps", nil)
		n.agent.trigger()
		n.eventually("off", func() bool {
			return n.fastPath() == "off: somebody altered its maps" && !n.has("shortcut") && !n.has("program")
		})
		p.set("", nil)
		n.eventually("on again", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.has(shortcut2) })
	})
	plan := netstate.NewState(netstate.Program{Dev: "cni0"}, netstate.Route{Dst: netip.MustParsePrefix("10.9.0.0/24")})
	a := &Agent{Config: Config{Kernel: steady{state: plan}}}
	got, _, err := a.compare(t.Context(), netstate.State{}, false)
	if err != nil || len(got) != 1 || got[0].Key().Kind != netstate.KindProgram {
		t.Errorf("without the store's word the plan is %v (%v), want to delete the program alone", got, err)
	}
}

// steady is a Kernel that has one state.
type steady struct {
	Kernel
	state netstate.State
}

func (o steady) Observe(context.Context, netstate.State) (netstate.State, error) { return o.state, nil }

// TestFastPathFails: what the kernel refuses of it leaves the node ready, and is tried again.
func TestFastPathFails(t *testing.T) {
	for name, test := range map[string]struct {
		refused func(netstate.Object) bool
		why     string
	}{
		"a program": {func(o netstate.Object) bool { return o.Key().Kind == netstate.KindProgram },
			"off: + program from_pod dev cni0 ingress: EBUSY"},
		"one program": {func(o netstate.Object) bool { return o == netstate.Program{Dev: "flannel.1", Name: netstate.ToPod} },
			"off: + program to_pod dev flannel.1 ingress: EBUSY"},
		"a parameter": {func(o netstate.Object) bool { return o.Key() == liberal.Key() },
			"off: ~ " + liberal.String() + " (was " + strings.TrimSuffix(liberal.String(), "1") + "0): EBUSY"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, _ := fastNode(t)
				n.kernel.SetFaults(fake.Faults{Change: func(c netstate.Change) error {
					if c.Want != nil && test.refused(c.Want) {
						return errors.New("EBUSY")
					}
					return nil
				}})
				stop := n.start()
				defer stop()
				n.eventually("off", func() bool { return n.fastPath() == test.why && !n.has("program") && !n.has("shortcut") })
				time.Sleep(5 * unreadyAfter)
				if !n.ready() || !n.has(peerRoute) {
					t.Errorf("the node is not ready: %v", n.agent.status.Ready())
				}
				if lines := n.logs("the fast path is off"); lines != 1 {
					t.Errorf("%d lines tell of it, want 1:\n%s", lines, n.log.String())
				}
				n.kernel.SetFaults(fake.Faults{})
				time.Sleep(resync)
				n.eventually("on", func() bool { return n.fastPath() == "on: cni0 flannel.1" && n.has(shortcut2) })
			})
		})
	}
}

// denials are policies that deny open connections of some pods.
type denials struct {
	policies
	mu      sync.Mutex
	pods    map[netip.Addr]bool
	changed chan struct{}
}

func (d *denials) Denied() (map[netip.Addr]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods, nil
}

func (d *denials) DeniedChanged() <-chan struct{} { return d.changed }

func (d *denials) set(pods map[netip.Addr]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = pods
	d.changed <- struct{}{}
}

// TestDeniedPod: a pod with an open connection that policies deny leaves the fast path at once, and comes back as soon.
func TestDeniedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := fastNode(t)
		tune, d := n.tune, &denials{changed: make(chan struct{}, 1)}
		n.tune = func(c *Config) { tune(c); c.Policies = d }
		stop := n.start()
		defer stop()
		const on, pod = "on: cni0 flannel.1", "podport 10.244.1.7 dev veth1"
		n.eventually("on", func() bool { return n.fastPath() == on && n.has(pod) && n.ready() })
		d.set(map[netip.Addr]bool{netip.MustParseAddr("10.244.1.7"): true, netip.MustParseAddr("10.244.1.8"): true})
		time.Sleep(time.Second)
		synctest.Wait()
		if n.has(pod) || !n.has(shortcut2) || n.fastPath() != on+"; but not for veth1 (policies deny an open connection of the pod)" {
			t.Errorf("with a denied connection: %s\n%s", n.fastPath(), n.state())
		}
		d.set(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if !n.has(pod) || n.fastPath() != on {
			t.Errorf("without one: %s\n%s", n.fastPath(), n.state())
		}
	})
}

// TestFastPathIsLeft: what an agent left that had one is deleted, and /status does not speak of it.
func TestFastPathIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := fastNode(t)
		stop := n.start()
		n.eventually("on", func() bool { return n.has("program to_pod dev flannel.1") && n.ready() })
		stop()
		n.tune = func(c *Config) { c.Machine = withPod{n.kernel} }
		stop = n.start()
		defer stop()
		n.eventually("nothing of it", func() bool {
			return n.ready() && !n.has("program") && !n.has("shortcut") && !n.has("podport") && !n.has("switch")
		})
		if got := n.fastPath(); got != "" {
			t.Errorf("/status says %q", got)
		}
	})
}

// TestFastPathOff: reasons that are known before the programs are asked.
func TestFastPathOff(t *testing.T) {
	for name, test := range map[string]struct {
		agent *Agent
		want  string
	}{
		"no programs": {&Agent{}, "this agent has no programs for it"},
		"policies":    {&Agent{Config: Config{FastPath: &programs{}, Policies: policies{errors.New("nothing is judged yet")}}}, "nothing is judged yet"},
		"blocked":     {&Agent{Config: Config{FastPath: &programs{why: "no conntrack"}}}, "no conntrack"},
		"refused": {&Agent{Config: Config{FastPath: &programs{}}, loop: loopState{
			refusal: refusal{"EBUSY", time.Now().Add(time.Minute)}}}, "EBUSY"},
		"refused long ago": {&Agent{Config: Config{FastPath: &programs{}}, loop: loopState{refusal: refusal{"EBUSY", time.Now()}}}, ""},
	} {
		if got := test.agent.fastPathOff(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestFastFacts: the facts that only the fast path needs are gathered where it is wanted, and say what an underlay is.
func TestFastFacts(t *testing.T) {
	addr := netip.MustParsePrefix("192.0.2.1/24")
	eth := netstate.Interface{Name: "eth0", MTU: 1500, Up: true, Ethernet: true, Queued: true, Addrs: []netip.Prefix{addr}, OnLink: []netip.Prefix{addr.Masked()}}
	vtep := netstate.Interface{Name: "flannel.1", Owned: true, ChecksumsOff: true, Ethernet: true}
	port := netstate.Interface{Name: "veth1", Owned: true, Queued: true, Ethernet: true, Beside: "a filter"}
	infiniband, inVRF := eth, eth
	infiniband.Ethernet, inVRF.VRF = false, "red"
	for name, test := range map[string]struct {
		on       bool
		underlay netstate.Interface
		off      string
	}{
		"not wanted": {false, infiniband, ""},
		"Ethernet":   {true, eth, ""},
		"InfiniBand": {true, infiniband, "the underlay eth0 is not an Ethernet device"},
		"a VRF":      {true, inVRF, "the underlay eth0 is in the VRF red"},
	} {
		p := Planner{Choice: Choice{Names: []string{"eth0"}}, Shortcuts: backend.FastPath{On: test.on}}
		p.Network.Pools = append(p.Network.Pools, subnet.Pool{Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24})
		node, err := p.Facts([]netstate.Interface{test.underlay, vtep, port}, backend.Node{}, nil)
		if err != nil || node.FastPathOff != test.off || node.ChecksumsOff["flannel.1"] != test.on || node.Queued["veth1"] != test.on ||
			node.Queued["eth0"] || (node.Beside["veth1"] == "a filter") != test.on {
			t.Errorf("%s: %+v, %v", name, node, err)
		}
	}
}
