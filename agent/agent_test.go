package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// node is one agent on a kernel in memory, with a file as its store.
type node struct {
	*testing.T
	kernel  *fake.Kernel
	dir     string
	log     logBuffer
	agent   *Agent
	live    func(netip.Prefix) (int, error)
	backend backend.Backend // nil: vxlan
	tune    func(*Config)   // nil, or what changes before the start
	list    chan struct{}   // nil: the store tells of the peers at once; else when this is closed
}

// slow is a store that takes its time to tell of the peers.
type slow struct {
	subnet.Store
	list <-chan struct{}
}

func (s slow) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.list:
		return s.Store.Watch(ctx, f)
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

const netConf = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`

func newNode(t *testing.T) *node {
	n := &node{T: t, kernel: fake.New(netstate.Left{Network: netip.MustParsePrefix("10.244.0.0/16"), Bits: 24}), dir: t.TempDir()}
	for _, command := range []string{"ip link add eth1 type veth peer name peer1", "ip link set eth1 up", "ip link set peer1 up",
		"ip addr add 192.168.33.101/24 dev eth1"} {
		if err := n.kernel.Run(command); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n *node) leases() string     { return filepath.Join(n.dir, "leases.json") }
func (n *node) checkpoint() string { return filepath.Join(n.dir, "checkpoint.json") }

// start runs an agent until the returned function is called.
func (n *node) start() (stop func()) {
	network, err := subnet.ParseConfig([]byte(netConf))
	n.must(err)
	networks := []netip.Prefix{network.Pools[0].Network}
	b, _, err := vxlan.New(networks, network.Options)
	n.must(err)
	if n.backend != nil {
		b = n.backend
	}
	config := Config{
		Planner: Planner{Node: "node1", Network: network, Backend: b, Choice: Choice{Names: []string{"eth1"}},
			Base: backend.BaseConfig{Bridge: "cni0"}, Firewall: backend.FirewallConfig{Masq: true, Forward: backend.ForwardOn}},
		Store: file.New(n.leases(), network.Pools), Kernel: n.kernel, Machine: n.kernel, Live: n.live,
		Settings: Settings{SubnetFile: filepath.Join(n.dir, "subnet.env"), Checkpoint: n.checkpoint()},
		Log:      slog.New(slog.NewTextHandler(&n.log, nil)), Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	if n.tune != nil {
		n.tune(&config)
	}
	n.agent = New(config)
	if n.list != nil {
		n.agent.Store = slow{n.agent.Store, n.list}
	}
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan error, 1)
	go func() { done <- n.agent.Run(ctx) }()
	stop = func() {
		cancel()
		n.must(<-done)
	}
	n.Cleanup(cancel)
	return stop
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// addPeer writes a peer's lease into the store.
func (n *node) addPeer(name, pods, at, mac string) {
	n.Helper()
	n.setPeers(append(n.peers(), peerLease(name, pods, at, mac)))
}

// setPeer replaces a peer's lease.
func (n *node) setPeer(name, pods, at, mac string) {
	n.Helper()
	leases := n.peers()
	for i, l := range leases {
		if l.Node == name {
			leases[i] = peerLease(name, pods, at, mac)
		}
	}
	n.setPeers(leases)
}

func peerLease(name, pods, at, mac string) subnet.Lease {
	return subnet.Lease{Node: name, Backend: "vxlan", Stacks: []subnet.Stack{{
		Subnet: netip.MustParsePrefix(pods), Underlay: netip.MustParseAddr(at), Data: json.RawMessage(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}}}
}

// peers are the leases in the store.
func (n *node) peers() (leases []subnet.Lease) {
	n.Helper()
	if data, err := os.ReadFile(n.leases()); err == nil {
		leases, _, err = file.Parse(data)
		n.must(err)
	}
	return leases
}

func (n *node) setPeers(leases []subnet.Lease) {
	n.Helper()
	data, err := file.Format(leases)
	n.must(err)
	n.must(os.WriteFile(n.leases()+".tmp", data, 0o600))
	n.must(os.Rename(n.leases()+".tmp", n.leases()))
}

func (n *node) has(text string) bool { return strings.Contains(n.state(), text) }

// logs is how often something was logged.
func (n *node) logs(text string) int { return strings.Count(n.log.String(), text) }

// state is everything of Twill's, as text.
func (n *node) state() string {
	n.Helper()
	have, err := n.kernel.Observe(n.Context(), nil)
	n.must(err)
	return have.String()
}

// eventually waits until the check holds. Its clock is that of a bubble: outside of one is testwait.Until.
func (n *node) eventually(what string, check func() bool) {
	n.Helper()
	for end := time.Now().Add(10 * time.Second); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("never: %s\nstate:\n%slog:\n%s", what, n.state(), n.log.String())
		}
	}
}

func (n *node) ready() bool { return n.agent.status.Ready() == nil }

const peerRoute = "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"

func TestRunFollowsTheStoreAndStopsQuietly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start()
		n.eventually("ready", n.ready)
		env, err := subnet.ReadEnv(filepath.Join(n.dir, "subnet.env"))
		if err != nil || env.MTU != 1450 || !env.IPMasq || len(env.Subnets) != 1 || env.Subnets[0].Addr() != env.Subnets[0].Masked().Addr().Next() ||
			env.Subnets[0].Bits() != 24 || len(env.Networks) != 1 || env.Networks[0] != n.agent.Network.Pools[0].Network || env.BootID != subnet.BootID() {
			t.Errorf("subnet.env says %+v, err %v", env, err)
		}
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) })
		before := n.state()
		stop()
		if c, err := readCheckpoint(n.checkpoint()); err != nil || len(c.Peers) != 1 {
			t.Errorf("the checkpoint has %d peers, want 1: %v", len(c.Peers), err)
		}
		if after := n.state(); after != before {
			t.Errorf("the data path did not stay:\n%s\nbecame\n%s", before, after)
		}
	})
}

func TestRunRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		stop := n.start()
		defer stop()
		n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) && n.ready() })
		before := n.state()
		for _, command := range []string{"ip link del flannel.1", "ip link set flannel.1 down", "ip route del 10.244.2.0/24",
			"ip neigh del 10.244.2.0 dev flannel.1", "ip link set flannel.1 mtu 1300", "sysctl -w net/ipv4/ip_forward=0"} {
			n.must(n.kernel.Run(command))
			n.eventually(command+" healed", func() bool { return n.state() == before })
		}
		n.kernel.Overflow() // nobody hints any more, unless the agent subscribes again
		time.Sleep(50 * time.Millisecond)
		n.must(n.kernel.Run("ip link del flannel.1"))
		n.eventually("healed after the subscription broke", func() bool { return n.state() == before })
	})
}

// TestRunIsQuiet: where nothing happens the agent does nothing.
func TestRunIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		var reads atomic.Int32
		n.kernel.SetFaults(fake.Faults{Observe: func() error { reads.Add(1); return nil }})
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		n.eventually("no reading for half a second", func() bool {
			before := reads.Load()
			time.Sleep(500 * time.Millisecond)
			return reads.Load() == before
		})
		n.kernel.SetFaults(fake.Faults{})
	})
}

func TestRunSkipsOnePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		n.addPeer("node3", "10.244.2.0/24", "192.168.33.103", "0e:00:00:00:00:03")
		stop := n.start()
		n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) && n.ready() })
		stop()
		if log := n.log.String(); strings.Count(log, "a peer is left out") != 1 || !strings.Contains(log, "node=node3") {
			t.Errorf("the log does not name node3 once:\n%s", log)
		}
		if strings.Contains(n.state(), "192.168.33.103") {
			t.Errorf("node3 is in the kernel:\n%s", n.state())
		}
	})
}

// TestRunWithoutTheStore starts from a checkpoint that knows node2, on a kernel that still has node3.
func TestRunWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		n.addPeer("node3", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
		stop := n.start()
		n.eventually("both in the checkpoint", func() bool {
			c, err := readCheckpoint(n.checkpoint())
			return err == nil && len(c.Peers) == 2 && n.ready()
		})
		stop()
		c, err := readCheckpoint(n.checkpoint())
		n.must(err)
		c.Peers = c.Peers[:1]
		n.must(writeCheckpoint(n.checkpoint(), c))
		n.must(n.kernel.Run("ip route del 10.244.2.0/24"))
		leases, err := os.ReadFile(n.leases())
		n.must(err)
		n.must(os.WriteFile(n.leases(), []byte("{"), 0o600)) // an outage, not an empty cluster

		stop = n.start()
		defer stop()
		n.eventually("node2 from the checkpoint", func() bool { return strings.Contains(n.state(), peerRoute) })
		if !strings.Contains(n.state(), "10.244.3.0/24") {
			t.Errorf("node3 was deleted without the store's word:\n%s", n.state())
		}
		if n.ready() {
			t.Error("ready without the store")
		}
		n.must(os.WriteFile(n.leases(), leases, 0o600))
		n.eventually("ready when the store is back", n.ready)
	})
}

func TestRunKeepsPeersWhileTheUnderlayFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		stop := n.start()
		defer stop()
		n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) && n.ready() })
		before := n.state()
		n.must(n.kernel.Run("ip addr del 192.168.33.101/24 dev eth1"))
		n.eventually("the loss is logged", func() bool {
			return strings.Contains(n.log.String(), "no interface with an IPv4 address matches --iface eth1")
		})
		if n.state() != before {
			t.Errorf("without an underlay the state became\n%s", n.state())
		}
		n.must(n.kernel.Run("ip addr add 192.168.33.150/24 dev eth1"))
		n.eventually("the device follows", func() bool { return strings.Contains(n.state(), "local 192.168.33.150") })
		n.eventually("and the lease", func() bool {
			data, err := os.ReadFile(n.leases())
			return err == nil && strings.Contains(string(data), "192.168.33.150")
		})
	})
}

func TestRunReportsContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start()
		n.eventually("ready", n.ready)
		end := time.Now().Add(10 * time.Second)
		for !strings.Contains(n.log.String(), "something else keeps changing this") && time.Now().Before(end) {
			n.must(n.kernel.Run("sysctl -w net/ipv4/ip_forward=0"))
			time.Sleep(20 * time.Millisecond)
		}
		stop()
		if log := n.log.String(); !strings.Contains(log, `object="sysctl net/ipv4/ip_forward = 1"`) {
			t.Errorf("the contention is not reported:\n%s", log)
		}
	})
}

func TestCleanupLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		stop := n.start()
		n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) && n.ready() })
		stop()
		done, err := Cleanup(t.Context(), n.kernel)
		n.must(err)
		if n.state() != "" || !strings.Contains(done.String(), "- link flannel.1") {
			t.Errorf("left:\n%sdone:\n%s", n.state(), done)
		}
	})
}

func TestPlanClaimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start()
		n.eventually("ready", n.ready)
		stop()
		leases, err := os.ReadFile(n.leases())
		n.must(err)
		n.must(n.kernel.Run("ip link del flannel.1"))
		n.agent.Store = file.New(n.leases(), n.agent.Network.Pools) // as in a process that has acquired nothing
		planned, err := n.agent.Plan(t.Context())
		n.must(err)
		if len(planned.Skips)+len(planned.Elsewhere) > 0 {
			t.Errorf("left out: %v; elsewhere: %v", planned.Skips, planned.Elsewhere)
		}
		plan := planned.Kernel
		if len(plan) == 0 || plan[0].Want == nil || plan[0].Key() != (netstate.Key{Kind: netstate.KindLink, Name: "flannel.1"}) {
			t.Errorf("the plan is\n%s", plan)
		}
		if strings.Contains(n.state(), "link flannel.1") {
			t.Error("a plan was applied")
		}
		if after, err := os.ReadFile(n.leases()); err != nil || !bytes.Equal(after, leases) {
			t.Errorf("the leases changed: %s, %v", after, err)
		}
		n.must(os.Remove(n.leases()))
		if _, err := n.agent.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), "node node1 has no lease yet") {
			t.Errorf("without a lease: %v", err)
		}
	})
}
