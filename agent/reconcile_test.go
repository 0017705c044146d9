package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// TestBroken: the way to a few peers, or a leftover, does not make a node's data path wrong; all
// else that is not as wanted does.
func TestBroken(t *testing.T) {
	want := netstate.State{}
	for i := range 10 {
		want.Add(netstate.Sysctl{Name: fmt.Sprint(i)})
	}
	entries := func(n int) (p netstate.Plan) {
		for i := range n {
			p = append(p, netstate.Change{Want: []netstate.Object{netstate.Neigh{}, netstate.FDB{}, netstate.Peer{}, netstate.Route{}}[i%4]})
		}
		return p
	}
	for name, test := range map[string]struct {
		rest   netstate.Plan
		err    error
		broken bool
	}{
		"all is well":     {nil, nil, false},
		"not read back":   {nil, errors.New("no answer"), true},
		"one peer":        {entries(1), errors.New("refused"), false},
		"half of all":     {entries(5), nil, false},
		"more than half":  {entries(6), nil, true},
		"a leftover":      {netstate.Plan{{Was: netstate.Bridge{Name: "cni1"}}}, errors.New("busy"), false},
		"many leftovers":  {append(entries(5), netstate.Change{Was: netstate.Neigh{}}, netstate.Change{Was: netstate.Route{}}), nil, false},
		"the bridge":      {netstate.Plan{{Want: netstate.Bridge{Name: "cni0"}}}, nil, true},
		"an address":      {netstate.Plan{{Want: netstate.Addr{Dev: "cni0"}}}, nil, true},
		"a sysctl behind": {append(entries(1), netstate.Change{Want: netstate.Sysctl{Name: "1"}}), nil, true},
		"the firewall":    {netstate.Plan{{Want: netstate.Chain{}}}, nil, true},
	} {
		if got := (result{want: want, left: test.rest, err: test.err}).degraded(); got != test.broken {
			t.Errorf("%s: broken %t, want %t", name, got, test.broken)
		}
	}
}

// thin is a backend of which only the MTU is asked.
type thin struct{ backend.Backend }

func (thin) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) - 50 }

// TestFit: pods' IPv6 needs 1280 bytes, IPv4 does not, and goes on alone.
func TestFit(t *testing.T) {
	four := backend.Underlay{Dev: "eth0", Local: addrs("192.0.2.1")[0], MTU: 1400}
	six := backend.Underlay{Dev: "eth1", Local: addrs("fd00::1")[0], MTU: 1330}
	low4, low6 := four, six
	low4.MTU, low6.MTU = 1300, 1329
	for _, test := range []struct {
		underlays []backend.Underlay
		left      int
		want      string
	}{
		{[]backend.Underlay{four, six}, 2, ""},
		{[]backend.Underlay{low4}, 1, ""},
		{[]backend.Underlay{six}, 1, ""},
		{[]backend.Underlay{four, low6}, 1, "pods would have an MTU of 1279 bytes, and IPv6 needs 1280: raise the MTU of eth1 from 1329 to 1330"},
		{[]backend.Underlay{low4, six}, 1, "pods would have an MTU of 1250 bytes, and IPv6 needs 1280: raise the MTU of eth0 from 1300 to 1330"},
		{[]backend.Underlay{low6}, 0, "pods would have an MTU of 1279 bytes, and IPv6 needs 1280: raise the MTU of eth1 from 1329 to 1330"},
	} {
		var lease subnet.Lease
		for _, u := range test.underlays {
			lease.Stacks = append(lease.Stacks, subnet.Stack{Underlay: u.Local})
		}
		node, snap, err := Planner{Backend: thin{}}.Fit(backend.Node{Underlays: test.underlays}, subnet.Snapshot{Local: lease})
		if text := strings.TrimPrefix(errText(err), ": "); text != test.want {
			t.Errorf("got %q, want %q", text, test.want)
		}
		if len(node.Underlays) != test.left || len(snap.Local.Stacks) != test.left || test.left == 1 && node.Underlays[0].Local != test.underlays[0].Local {
			t.Errorf("of %v stay %v with %v", test.underlays, node.Underlays, snap.Local)
		}
		if len(lease.Stacks) != len(test.underlays) || len(test.underlays) > 1 && lease.Stacks[1].Family() != netstate.IPv6 {
			t.Errorf("the lease itself became %v", lease)
		}
	}
}

// TestTooLargeMTU: an MTU that the NIC does not carry is a sentence, once, and nothing is tried with it; when the NIC's is
// raised, the node comes up. When it is lowered later, what stands is still kept.
func TestTooLargeMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		b, _, err := vxlan.New(prefixes("10.244.0.0/16"), []byte(`{"Type":"vxlan","MTU":9000}`))
		n.must(err)
		n.backend = b
		stop := n.start()
		defer stop()
		const says = "net-conf Backend: MTU 9000 is larger than eth1's 1500: want at most 1500, or 0 for the interface's"
		n.eventually("the sentence", func() bool { return n.logs(says) > 0 })
		time.Sleep(5 * time.Second)
		if n.logs(says) != 1 || n.logs("bring the kernel") > 0 || n.has("flannel.1") || n.ready() {
			t.Errorf("want the sentence alone:\n%s\n%s", n.log.String(), n.state())
		}
		n.must(n.kernel.Run("ip link set eth1 mtu 9000"))
		n.eventually("the node is up", func() bool { return n.ready() && n.has("mtu 8950") })
		n.must(n.kernel.Run("ip link set eth1 mtu 1500"))
		before := n.state()
		n.must(n.kernel.Run("sysctl -w net/ipv4/ip_forward=0"))
		n.eventually("what stands is kept", func() bool { return n.state() == before })
	})
}

// TestRunLeavesIPv6Out: a node whose underlay is too small for IPv6 has IPv4, and IPv6 as soon as it fits.
func TestRunLeavesIPv6Out(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.must(n.kernel.Run("ip addr add fd33::101/64 dev eth1"))
		n.tune = func(c *Config) {
			network, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48", "Backend": {"Type": "vxlan"}}`))
			n.must(err)
			var pools []netip.Prefix
			for _, p := range network.Pools {
				pools = append(pools, p.Network)
			}
			b, _, err := vxlan.New(pools, network.Options)
			n.must(err)
			c.Network, c.Backend, c.Store = network, b, file.New(n.leases(), network.Pools)
		}
		stop := n.start()
		defer stop()
		env := func() subnet.Env {
			env, _ := subnet.ReadEnv(filepath.Join(n.dir, "subnet.env"))
			return env
		}
		has := func(mtu, families int) func() bool {
			return func() bool { return n.ready() && env().MTU == mtu && len(env().Subnets) == families }
		}
		n.eventually("both families", has(1430, 2))
		n.must(n.kernel.Run("ip link set eth1 mtu 1340"))
		n.eventually("IPv4 alone", has(1290, 1))
		if !n.has("flannel.1") || n.has("flannel-v6.1") || len(n.peers()[0].Stacks) != 2 {
			t.Errorf("the lease is %v, and there is\n%s", n.peers(), n.state())
		}
		if n.logs("raise the MTU of eth1 from 1340 to 1350") != 1 || n.logs("level=ERROR") != 1 {
			t.Errorf("want one line that says what is missing:\n%s", n.log.String())
		}
		n.must(n.kernel.Run("ip link set eth1 mtu 1350"))
		n.eventually("both families again", has(1280, 2))
	})
}

// dialling is a store that counts how often it has to connect again.
type dialling struct {
	subnet.Store
	times int
}

func (d *dialling) Redial() { d.times++ }

// TestRedial: the store connects again when an address is gone, and only then.
func TestRedial(t *testing.T) {
	store := &dialling{}
	a := New(Config{Store: store})
	for i, step := range []struct {
		addrs string
		want  int
	}{{"10.0.0.1/24", 0}, {"10.0.0.1/24 10.0.0.2/24", 0}, {"10.0.0.2/24", 1}, {"10.0.0.2/24", 1}, {"10.0.0.3/24", 2}, {"", 3}, {"", 3}} {
		a.redial([]netstate.Interface{{Name: "lo"}, {Name: "eth0", Addrs: prefixes(strings.Fields(step.addrs)...)}})
		if store.times != step.want {
			t.Errorf("step %d, %q: connected again %d times, want %d", i, step.addrs, store.times, step.want)
		}
	}
	New(Config{}).redial(nil) // a store that has no connections
}

// TestReconcileRedials: a reconcile finds that an address is gone.
func TestReconcileRedials(t *testing.T) {
	m := newModel(t, nil)
	store := &dialling{Store: m.agent.Store}
	m.agent.Store = store
	must(t, m.kernel.Run("ip addr add 192.168.33.200/24 dev eth1"))
	m.agent.reconcile(t.Context())
	must(t, m.kernel.Run("ip addr del 192.168.33.200/24 dev eth1"))
	m.agent.reconcile(t.Context())
	if store.times != 1 {
		t.Errorf("the store connected again %d times, want once", store.times)
	}
}

// TestRemind: the loop is told to ask for the snapshot again, each time that a record waits.
func TestRemind(t *testing.T) {
	a := New(Config{})
	for range 2 {
		a.leases.remind(time.Millisecond)
		select {
		case <-a.leases.changed:
		case <-time.After(testwait.Limit):
			t.Fatal("nobody was reminded")
		}
	}
}

// TestDesiredHasAll: the backend's objects, what every node has, and the firewall.
func TestDesiredHasAll(t *testing.T) {
	m := newModel(t, nil)
	m.join()
	m.agent.reconcile(t.Context())
	counts := map[netstate.Kind]int{}
	for k := range m.agent.loop.desired.want {
		counts[k.Kind]++
	}
	for k, least := range map[netstate.Kind]int{netstate.KindLink: 2, netstate.KindAddr: 2, netstate.KindSysctl: 1, netstate.KindRoute: 1,
		netstate.KindNeigh: 1, netstate.KindFDB: 1, netstate.KindChain: 2} {
		if counts[k] < least {
			t.Errorf("%d objects of kind %s, want %d", counts[k], k, least)
		}
	}
}

// TestOnlyEntries: what others stand on, or what is contended, is nothing for the incremental update.
func TestOnlyEntries(t *testing.T) {
	a, route := New(Config{}), netstate.Change{Want: netstate.Route{Dst: prefixes("10.244.2.0/24")[0]}}
	entries := netstate.Plan{{Want: netstate.Neigh{}}, {Was: netstate.FDB{}}, route}
	if !a.onlyEntries(nil) || !a.onlyEntries(entries) {
		t.Error("entries alone need a reconcile")
	}
	for _, o := range []netstate.Object{netstate.Bridge{}, netstate.Addr{}, netstate.Sysctl{}, netstate.Chain{}} {
		if a.onlyEntries(append(netstate.Plan{{Want: o}}, entries...)) || a.onlyEntries(append(netstate.Plan{route}, netstate.Change{Was: o})) {
			t.Errorf("%s needs no reconcile", o)
		}
	}
	for range contentionLimit {
		a.loop.contention.record(netstate.Plan{route}, time.Now())
	}
	if a.onlyEntries(entries) || !a.loop.contention.suppressing(time.Now()) {
		t.Error("what is contended needs no reconcile")
	}
}

// TestIgnoreDone: the end of the agent is no error, whatever it cut short.
func TestIgnoreDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := errors.New("no answer")
	if ignoreDone(ctx, err) != err || ignoreDone(ctx, nil) != nil || ignoreDone(ctx, fmt.Errorf("call: %w", context.Canceled)) != nil {
		t.Error("while it runs another error is told")
	}
	if cancel(); ignoreDone(ctx, err) != nil {
		t.Error("an error of the end is told")
	}
}

// TestConvergeGivesUp: what cannot be applied is not tried again at once, and what does not last is
// tried four times.
func TestConvergeGivesUp(t *testing.T) {
	m := newModel(t, nil)
	m.agent.reconcile(t.Context())
	refused, tries := errors.New("no memory"), 0
	must(t, m.kernel.Run("sysctl -w net/ipv4/ip_forward=0"))
	m.kernel.SetFaults(fake.Faults{Change: func(netstate.Change) error { tries++; return refused }})
	r := m.agent.converge(t.Context(), m.agent.loop.desired.want, true)
	if !errors.Is(r.err, refused) || len(r.left) != 1 || tries != 1 {
		t.Errorf("refused: %v, left %s, tried %d times", r.err, r.left, tries)
	}
	m.kernel.SetFaults(fake.Faults{})
	m.agent.Kernel = forgetful{m.kernel, &tries}
	tries = 0
	if r := m.agent.converge(t.Context(), m.agent.loop.desired.want, true); r.err == nil || len(r.left) != 1 || tries != maxRounds {
		t.Errorf("undone: %v, left %s, tried %d times", r.err, r.left, tries)
	}
	if maxRounds < 3 || maxRounds > 10 {
		t.Errorf("%d rounds", maxRounds)
	}
}

// forgetful is a kernel that does nothing and says that it did.
type forgetful struct {
	Kernel
	times *int
}

func (f forgetful) Apply(context.Context, netstate.Plan) error { *f.times++; return nil }

// failing is a kernel that cannot do one thing.
type failing struct {
	Kernel
	observe, apply error
}

func (f failing) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	have, err := f.Kernel.Observe(ctx, want)
	return have, errors.Join(err, f.observe)
}

func (f failing) Apply(ctx context.Context, p netstate.Plan) error {
	return errors.Join(f.Kernel.Apply(ctx, p), f.apply)
}

// TestCleanupFails: a cleanup that could not read, or not delete, is an error.
func TestCleanupFails(t *testing.T) {
	m, broken := newModel(t, nil), errors.New("broken")
	m.agent.reconcile(t.Context())
	if _, err := Cleanup(t.Context(), failing{Kernel: m.kernel, observe: broken}); !errors.Is(err, broken) {
		t.Errorf("not read: %v", err)
	}
	if _, err := Cleanup(t.Context(), failing{Kernel: m.kernel, apply: broken}); !errors.Is(err, broken) {
		t.Errorf("not deleted: %v", err)
	}
}

// TestWithout: of the peers, what has the own lease's subnet and address is this node; what has one
// of them is not.
func TestWithout(t *testing.T) {
	own := peerLease("node1", "10.244.1.0/24", "192.168.33.101", "")
	peers := []subnet.Lease{peerLease("192.168.33.101", "10.244.1.0/24", "192.168.33.101", ""),
		peerLease("node2", "10.244.1.0/24", "192.168.33.102", ""), peerLease("node3", "10.244.3.0/24", "192.168.33.101", "")}
	if got := without(peers, own); len(got) != 2 || got[0].Node != "node2" || got[1].Node != "node3" || peers[0].Node != "192.168.33.101" {
		t.Errorf("left are %v of %v", got, peers)
	}
}
