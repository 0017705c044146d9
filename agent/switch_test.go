package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// ways are the backends of the fake kernel, and what a peer publishes for each.
var ways = []struct{ name, options, data string }{
	{"vxlan", `{"Type": "vxlan"}`, `{"VNI":1,"VtepMAC":"0a:00:00:00:00:%02x"}`},
	{"vxlan", `{"Type": "vxlan", "VNI": 7, "Port": 4789}`, `{"VNI":7,"VtepMAC":"0a:00:00:00:00:%02x"}`},
	{"vxlan", `{"Type": "vxlan", "DirectRouting": true}`, `{"VNI":1,"VtepMAC":"0a:00:00:00:00:%02x"}`},
	{"host-gw", `{"Type": "host-gw"}`, ""},
	{"udp", `{"Type": "udp"}`, ""},
	{"ipip", `{"Type": "ipip"}`, ""},
	{"wireguard", `{"Type": "wireguard"}`, `{"PublicKey":"%02xAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`},
}

// changer is a node whose agent is started again with one network config after the other.
type changer struct {
	*testing.T
	kernel *fake.Kernel
	dir    string
	local  subnet.Lease   // as published
	peers  []subnet.Lease // as published
	saved  checkpoint
}

func newChanger(t *testing.T, way int) *changer {
	c := &changer{T: t, kernel: newNode(t).kernel, dir: t.TempDir()}
	c.local = c.lease(way, 1)
	c.peers = []subnet.Lease{c.lease(way, 2), c.lease(way, 3)}
	return c
}

// lease returns what a node publishes; node 3 is in another segment.
func (c *changer) lease(way, node int) subnet.Lease {
	s := subnet.Stack{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", node)), Underlay: netip.MustParseAddr(fmt.Sprintf("192.168.33.10%d", node))}
	if data := ways[way].data; data != "" {
		s.Data = json.RawMessage(fmt.Sprintf(data, 16+node))
	}
	return subnet.Lease{Node: fmt.Sprintf("node%d", node), Backend: ways[way].name, Stacks: []subnet.Stack{s}}
}

// start starts an agent, which reconciles three times, and returns what it would publish then.
func (c *changer) start(way int) (a *Agent, published subnet.Lease) {
	c.Helper()
	network, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "Backend": ` + ways[way].options + `}`))
	must(c.T, err)
	if before, err := subnet.ParseConfig(c.saved.Network); err == nil {
		network.Kept = append([]json.RawMessage{before.Options}, c.saved.Kept...)
	}
	b, _, err := registry.NewKept(network)
	must(c.T, err)
	if r, ok := b.(backend.Runner); ok {
		must(c.T, r.Prepare(c.Context(), backend.Env{Dir: c.dir, Log: slog.New(slog.DiscardHandler), Report: func(backend.Health) {}}))
	}
	a = New(Config{Planner: Planner{Node: "node1", Network: network, Backend: b, Choice: Choice{Names: []string{"eth1"}},
		Base: backend.BaseConfig{Bridge: "cni0"}, Firewall: backend.FirewallConfig{Masq: true, Forward: backend.ForwardOn}},
		Kernel: c.kernel, Machine: c.kernel, Store: file.New(filepath.Join(c.dir, "leases.json"), network.Pools),
		Settings: Settings{SubnetFile: filepath.Join(c.dir, "subnet.env"), Checkpoint: filepath.Join(c.dir, "checkpoint.json")},
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	a.leases.newest.Store(&subnet.Snapshot{Local: c.local, Peers: c.peers})
	a.status.updateRunner(nil)
	for range 3 {
		a.reconcile(c.Context())
		select {
		case files := <-a.outputs:
			a.writeHanded(files)
		default:
		}
		select {
		case snap := <-a.saves:
			c.saved = a.checkpointOf(snap)
		default:
		}
	}
	return a, a.toPublish(a.loop.node, c.local)
}

// has returns what is in the kernel of a way.
func (c *changer) has(a *Agent) netstate.State {
	c.Helper()
	have, err := c.kernel.Observe(c.Context(), a.loop.desired.want)
	must(c.T, err)
	return have
}

// isWay reports whether packets to peers need an object: all but the bridge's own, parameters and rules.
func isWay(o netstate.Object) bool {
	key := o.Key()
	return key.Kind != netstate.KindSysctl && key.Kind != netstate.KindChain && key.Name != "cni0"
}

// mustHave fails for each object of a way that is not as it was.
func (c *changer) mustHave(was netstate.State, what string, but func(netstate.Object) bool) {
	c.Helper()
	have, err := c.kernel.Observe(c.Context(), was)
	must(c.T, err)
	for key, o := range was {
		if have[key] != o && !but(o) {
			c.Errorf("%s: %s became %v", what, o, have[key])
		}
	}
}

func never(netstate.Object) bool { return false }

// TestSwitchFromNothing: a node whose record names another backend, and that has nothing of it, since it was reserved or the
// machine has started again, gets all of the new one.
func TestSwitchFromNothing(t *testing.T) {
	for from := range ways {
		for to := range ways {
			if from == to {
				continue
			}
			t.Run(ways[from].options+" to "+ways[to].options, func(t *testing.T) {
				c := newChanger(t, from)
				a, published := c.start(to)
				want := a.loop.desired.want
				if left := netstate.Diff(want, c.has(a)); len(left) > 0 || len(want) == 0 {
					t.Errorf("%d objects are wanted, and %d are not there, the first: %s", len(want), len(left), left[0])
				}
				if published.Backend != ways[to].name {
					t.Errorf("it publishes %q, want %q", published.Backend, ways[to].name)
				}
			})
		}
	}
}

// changeOf says what kind of change another backend is.
type changeOf int

const (
	options changeOf = iota // nodes of both reach each other
	beside                  // the node has both until its peers have followed
	another                 // the old one goes when packets can take the new one
)

func changeFrom(t *testing.T, from, to int) changeOf {
	c := newChanger(t, from)
	c.start(from)
	a, _ := c.start(to)
	if _, ok := a.Backend.(backend.Transition); ok {
		return beside
	} else if ways[from].name == ways[to].name {
		return options
	}
	return another
}

// TestSwitch: a backend whose objects the kernel refuses, each kind of them on each device, leaves the way of the one
// before as it was, in the kernel and for peers, and the node is not ready. With the config of before nothing of that way is
// touched, and nothing of the other is left. A switch that works leaves nothing of the way before, which in a transition
// stays as long as the peers publish it.
func TestSwitch(t *testing.T) {
	for from := range ways {
		for to := range ways {
			if from == to {
				continue
			}
			t.Run(ways[from].options+" to "+ways[to].options, func(t *testing.T) {
				change := changeFrom(t, from, to)
				if change == options {
					return
				}
				for _, step := range partsOf(t, from, to, change) {
					refuse(t, from, to, step, change)
				}
			})
		}
	}
}

// partsOf returns the kinds and devices of what a switch that works puts into the kernel.
func partsOf(t *testing.T, from, to int, change changeOf) (all []netstate.Key) {
	c := newChanger(t, from)
	a, _ := c.start(from)
	old := c.has(a)
	c.kernel.SetFaults(fake.Faults{Change: func(ch netstate.Change) error {
		if key := stepKey(ch); ch.Want != nil && !slices.Contains(all, key) {
			all = append(all, key)
		}
		return nil
	}})
	b, published := c.start(to)
	want := ways[to].name
	if change == beside {
		want = ways[from].name
	}
	if err := b.status.Ready(); err != nil || published.Backend != want {
		t.Errorf("a change that works ends with %v, and publishes %+v, want %s", err, published, want)
	}
	for key, o := range old {
		if _, wanted := b.loop.desired.want[key]; !wanted && c.has(b)[key] == o && key.Kind != netstate.KindSysctl {
			t.Errorf("%s is left", o)
		}
	}
	return all
}

func stepKey(c netstate.Change) netstate.Key {
	return netstate.Key{Kind: c.Key().Kind, Name: deviceOf(cmpWant(c))}
}

func cmpWant(c netstate.Change) netstate.Object {
	if c.Want != nil {
		return c.Want
	}
	return c.Was
}

func refuse(t *testing.T, from, to int, step netstate.Key, change changeOf) {
	t.Helper()
	what := fmt.Sprintf("%s refused", strings.TrimSpace(step.Kind.String()+" "+step.Name))
	c := newChanger(t, from)
	a, _ := c.start(from)
	old := c.has(a)
	c.kernel.SetFaults(fake.Faults{Change: func(ch netstate.Change) error {
		if ch.Want != nil && stepKey(ch) == step {
			return syscall.EOPNOTSUPP
		}
		return nil
	}})
	b, published := c.start(to)
	if err := b.status.Ready(); err == nil {
		t.Errorf("%s: the node is ready", what)
	}
	if published.Backend != ways[from].name || strings.Contains(string(published.Stacks[0].Data), "Ways") {
		t.Errorf("%s: the node publishes %+v", what, published)
	}
	late := step.Kind == netstate.KindChain || step.Kind == netstate.KindSysctl || step.Name == "cni0"
	c.mustHave(old, what, func(o netstate.Object) bool { return (late || change == beside) && !isWay(o) })
	c.kernel.SetFaults(fake.Faults{Change: func(ch netstate.Change) error {
		if was := ch.Was; was != nil && old[was.Key()] == was && isWay(was) {
			t.Errorf("%s, and back: %s", what, ch)
		}
		return nil
	}})
	if back, _ := c.start(from); back.status.Ready() != nil {
		t.Errorf("%s, and back: %v", what, back.status.Ready())
	} else if got := c.has(back); got.String() != old.String() {
		t.Errorf("%s, and back: got\n%s\nwant\n%s", what, got, old)
	}
}

// TestSwitchLeavesNobodyOut: host-gw does not take the place of a backend that reaches peers of another segment. One that can
// stand beside it stays for them.
func TestSwitchLeavesNobodyOut(t *testing.T) {
	const hostGW = 3
	for from, way := range ways {
		if from == hostGW {
			continue
		}
		c := newChanger(t, from)
		c.peers[1].Stacks[0].Underlay = netip.MustParseAddr("192.168.44.103")
		must(t, c.kernel.Run("ip route add 192.168.44.0/24 via 192.168.33.1 dev eth1"))
		a, _ := c.start(from)
		old := c.has(a)
		b, published := c.start(hostGW)
		if _, ok := b.Backend.(backend.Transition); ok {
			if err := b.status.Ready(); err != nil || published.Backend != way.name {
				t.Errorf("after %s: %v, it publishes %+v", way.options, err, published)
			}
			c.mustHave(old, "a peer of another segment", func(o netstate.Object) bool { return !isWay(o) })
			continue
		}
		want := "the backend host-gw would leave out peers that this node reaches now, and the node stays with " + way.name +
			": node3: its underlay address 192.168.44.103 is not on the same L2 segment"
		if err := b.status.Ready(); err == nil || !strings.Contains(err.Error(), want) || published.Backend != way.name {
			t.Errorf("after %s the node is ready: %v, want %q; it publishes %+v", way.options, err, want, published)
		}
		c.mustHave(old, "a peer of another segment", never)
		c.peers = c.peers[:1]
		if b, published = c.start(hostGW); b.status.Ready() != nil || published.Backend != "host-gw" {
			t.Errorf("after %s, without that peer: %v, published %+v", way.options, b.status.Ready(), published)
		}
	}
}

// TestFew: of many names the first are shown.
func TestFew(t *testing.T) {
	for want, names := range map[string][]string{"a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"}} {
		if got := few(names); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestRefused: an agent that does not follow the network config works as before, says so once, and is not ready; the node's
// network is not called broken.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tune = func(c *Config) { c.Refused = errors.New("the backend udp cannot work on this node") }
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		stop := n.start()
		defer stop()
		n.eventually("the way to the peer", func() bool { return n.has(peerRoute) && n.ready() })
		time.Sleep(2 * resync)
		if err := n.agent.Ready(); !errors.Is(err, n.agent.Refused) || n.agent.report().Refused != err.Error() || n.agent.report().NotReady != err.Error() {
			t.Errorf("ready: %v, report %+v", err, n.agent.report())
		}
		if n.logs("the network config is not followed") != 1 || n.logs("the backend udp cannot work on this node") != 1 {
			t.Errorf("the log is\n%s", n.log.String())
		}
	})
}
