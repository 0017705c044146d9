package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// model is one agent's passes over a kernel in memory that others meddle with, driven by a string
// of bytes: each action takes the bytes that it needs, so a string is a whole history and the
// fuzzer can shorten it.
type model struct {
	*testing.T
	kernel  *fake.Kernel
	agent   *Agent
	snap    subnet.Snapshot
	foreign netstate.State // what is not the agent's, as it was in the beginning
	faults  fake.Faults
	bytes   []byte
	log     []string // what was done, for the reader of a failure
}

// FuzzLoop is the property of the loop: whatever happens to the kernel and to the leases, and
// whatever the kernel refuses meanwhile, once it refuses nothing any more two passes bring it to
// what the leases ask for, and nothing foreign was touched on the way.
func FuzzLoop(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Fuzz(func(t *testing.T, history []byte) { play(t, history[:min(len(history), 200)]) })
}

// TestLoop plays random histories; FuzzLoop looks for more. A failure names its seed.
func TestLoop(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			history := make([]byte, 20+random.IntN(180))
			for i := range history {
				history[i] = byte(random.Uint32())
			}
			play(t, history)
		})
	}
}

func play(t *testing.T, history []byte) {
	m := newModel(t, history)
	for len(m.bytes) > 0 {
		m.act()
		m.agent.loop.contention = contention{} // histories take no time, so that all repairs would count as contention
		if m.next(2) == 0 || !m.agent.incremental(t.Context()) {
			m.agent.reconcile(t.Context())
		}
		m.mustKeepForeign()
	}
	m.kernel.SetFaults(fake.Faults{})
	must(t, m.kernel.Run("ip link set eth1 up"))
	for range 2 {
		m.agent.reconcile(t.Context())
	}
	want, _ := m.agent.Desired(m.agent.loop.node, *m.agent.leases.follow())
	have, err := m.kernel.Observe(t.Context(), want)
	must(t, err)
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		t.Fatalf("not converged after\n%s\nleft:\n%s", strings.Join(m.log, "\n"), plan)
	}
	m.mustKeepForeign()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newModel(t *testing.T, history []byte) *model {
	m := &model{T: t, bytes: history, kernel: newNode(t).kernel}
	network, err := subnet.ParseConfig([]byte(netConf))
	must(t, err)
	b, _, err := vxlan.New([]netip.Prefix{network.Pools[0].Network}, network.Options)
	must(t, err)
	dir := t.TempDir()
	m.agent = New(Config{Planner: Planner{Node: "node1", Network: network, Backend: b, Choice: Choice{Names: []string{"eth1"}},
		Base: backend.BaseConfig{Bridge: "cni0"}, Firewall: backend.FirewallConfig{Masq: true, Forward: backend.ForwardOn}},
		Kernel: m.kernel, Machine: m.kernel, Store: file.New(filepath.Join(dir, "leases.json"), network.Pools),
		Settings: Settings{SubnetFile: filepath.Join(dir, "subnet.env"), Checkpoint: filepath.Join(dir, "checkpoint.json")},
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	m.agent.leases.peers.changes = 1 << 30 // histories take no time
	m.snap = subnet.Snapshot{Local: m.lease("node1", 1, 1)}
	m.publish()
	m.foreigners()
	return m
}

// foreigners are objects that others made, as near to ours as can be: a VXLAN device and a bridge
// of their own with entries on them, and routes into the cluster's network and out of it.
func (m *model) foreigners() {
	for _, command := range []string{
		"ip link add vxlan9 type vxlan id 9 dstport 4789 local 192.168.33.101 dev eth1 nolearning", "ip link set vxlan9 up",
		"ip addr add 172.30.0.1/24 dev vxlan9",
		"bridge fdb append 0a:00:00:00:00:09 dev vxlan9 dst 192.168.33.109",
		"ip neigh add 172.30.0.9 lladdr 0a:00:00:00:00:09 dev vxlan9 nud permanent",
		"ip link add eth2 type veth peer name peer2", "ip link set eth2 up", "ip link set peer2 up", "ip addr add 192.168.44.2/24 dev eth2",
		"ip route add 10.244.200.0/24 via 192.168.44.1 dev eth2 proto static",
		"ip route add 172.31.0.0/16 via 192.168.44.1 dev eth2 proto boot",
	} {
		must(m.T, m.kernel.Run(command))
	}
	dev, at := "vxlan9", netip.MustParseAddr("172.30.0.9")
	slots := netstate.NewState(
		netstate.VXLAN{Name: dev},
		netstate.Route{Dst: netip.MustParsePrefix("10.244.200.0/24")}, netstate.Route{Dst: netip.MustParsePrefix("172.31.0.0/16")})
	m.foreign = m.observeForeign(slots)
	if _, ok := m.foreign[netstate.Neigh{Dev: dev, IP: at}.Key()]; !ok || len(m.foreign) != 6 {
		m.Fatalf("the foreign objects are %v, want six", m.foreign.Sorted())
	}
}

// observeForeign reads as if the slots were wanted: the kernel only reports what is ours or wanted.
func (m *model) observeForeign(slots netstate.State) netstate.State {
	m.kernel.SetFaults(fake.Faults{})
	all, err := m.kernel.Observe(m.Context(), slots)
	must(m.T, err)
	m.kernel.SetFaults(m.faults)
	have := netstate.State{}
	for key, o := range all {
		if _, ok := slots[key]; ok || key.Name == "vxlan9" {
			have.Add(o)
		}
	}
	return have
}

func (m *model) mustKeepForeign() {
	m.Helper()
	if plan := netstate.Diff(m.foreign, m.observeForeign(m.foreign)); len(plan) > 0 {
		m.Fatalf("foreign objects were touched after\n%s\nto bring back:\n%s", strings.Join(m.log, "\n"), plan)
	}
}

// next is a number below limit, from the history.
func (m *model) next(limit int) int {
	if len(m.bytes) == 0 {
		return 0
	}
	b := int(m.bytes[0])
	m.bytes = m.bytes[1:]
	return b % limit
}

func (m *model) did(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// act does one thing to the leases, the kernel or its readiness to change.
func (m *model) act() {
	switch m.next(7) {
	case 0, 1:
		m.join()
	case 2:
		m.leave()
	case 3:
		m.drift()
	case 4:
		m.run()
	case 5:
		m.refuse()
	case 6:
		m.did("the kernel refuses nothing")
		m.faults = fake.Faults{}
		m.kernel.SetFaults(m.faults)
	}
}

func (m *model) lease(name string, number, mac int) subnet.Lease {
	return subnet.Lease{Node: name, Backend: "vxlan", Stacks: []subnet.Stack{{
		Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), 24),
		Underlay: netip.AddrFrom4([4]byte{192, 168, 33, byte(100 + number)}),
		Data:     json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"0e:00:00:00:%02x:%02x"}`, number, mac))}}}
}

func (m *model) publish() {
	snap := m.snap
	m.agent.leases.newest.Store(&snap)
}

// join adds a peer, or gives one that is there other data.
func (m *model) join() {
	number := 2 + m.next(8)
	l := m.lease(fmt.Sprint("node", number), number, m.next(4))
	if m.next(4) == 0 {
		l.Stacks[0].Underlay = netip.AddrFrom4([4]byte{192, 168, 33, byte(150 + number)})
	}
	m.did("join %s with %s and %s", l.Node, l.Stacks[0].Underlay, l.Stacks[0].Data)
	m.without(l.Node)
	m.snap.Peers = append(m.snap.Peers, l)
	m.publish()
}

func (m *model) leave() {
	name := fmt.Sprint("node", 2+m.next(8))
	m.did("leave %s", name)
	m.without(name)
	m.publish()
}

func (m *model) without(name string) {
	var peers []subnet.Lease
	for _, p := range m.snap.Peers {
		if p.Node != name {
			peers = append(peers, p)
		}
	}
	m.snap.Peers = peers
}

// drift deletes one of the objects that the agent wants, or puts another one in its slot.
func (m *model) drift() {
	want, _ := m.agent.Desired(m.agent.loop.node, m.snap)
	all := want.Sorted()
	victim := all[(m.next(256)*256+m.next(256))%len(all)]
	other, alterable := meddled(victim)
	if alterable && m.next(2) == 0 {
		m.did("alter %s to %s: %v", victim, other, m.kernel.Put(other))
		return
	}
	if victim.Key().Kind == netstate.KindSysctl {
		return // cannot be deleted
	}
	m.did("delete %s", victim)
	m.kernel.Remove(victim)
}

// meddled is an object like o, in the same slot or beside it, as somebody else may put it.
func meddled(o netstate.Object) (netstate.Object, bool) {
	switch o := o.(type) {
	case netstate.VXLAN:
		o.MTU--
		return o, true
	case netstate.Bridge:
		o.MTU--
		return o, true
	case netstate.Sysctl:
		o.Value = "0"
		return o, true
	case netstate.Neigh:
		o.MAC[5]++
		return o, true
	case netstate.FDB:
		o.Dst = o.Dst.Next()
		return o, true
	case netstate.Route:
		o.Extra = "mtu 900"
		return o, true
	case netstate.Chain:
		o.Place = netstate.Misplaced
		return o, true
	}
	return o, false
}

// run has somebody type a command; one that the kernel refuses changes nothing.
func (m *model) run() {
	commands := []string{
		"ip link set eth1 down", "ip link set eth1 up", "ip link del flannel.1", "ip link set flannel.1 down", "ip link del cni0",
		"ip link set flannel.1 master cni0", "ip link set flannel.1 nomaster", "ip addr add 10.99.0.1/24 dev flannel.1",
		"ip link set cni0 mtu 1300", "ip link set eth1 mtu 1400", "ip link set eth1 mtu 1500",
		"ip route add 10.244.77.0/24 via 10.244.77.0 dev flannel.1 onlink", "ip neigh add 10.244.66.0 lladdr 0a:00:00:00:00:01 dev flannel.1 nud permanent",
	}
	command := commands[m.next(len(commands))]
	m.did("%s: %v", command, m.kernel.Run(command))
}

// refuse has the kernel refuse one change in so many, or to be read.
func (m *model) refuse() {
	errnos := []syscall.Errno{syscall.EBUSY, syscall.ENOBUFS, syscall.EPERM, syscall.ENOENT, syscall.EEXIST, syscall.ENETUNREACH}
	errno, every, blind, count := errnos[m.next(len(errnos))], 1+m.next(5), m.next(8) == 0, 0
	m.did("the kernel refuses every change of %d with %v, to be read: %v", every, errno, blind)
	m.faults = fake.Faults{Change: func(netstate.Change) error {
		if count++; count%every == 0 {
			return errno
		}
		return nil
	}}
	if blind {
		m.faults.Observe = func() error { return errno }
	}
	m.kernel.SetFaults(m.faults)
}
