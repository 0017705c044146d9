package transition_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/backend/transition"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// member is a node of a cluster whose agents get one network config after the other.
type member struct {
	name    string
	node    backend.Node
	config  subnet.Config
	backend backend.Backend
	lease   subnet.Lease // as the store has it
	seen    []subnet.Lease
	sawAt   time.Time
	works   bool
	kept    []json.RawMessage
	dir     string // with its keys
}

// cluster is the nodes and their store.
type cluster struct {
	t       testing.TB
	members []*member
	now     time.Time
}

func newCluster(t testing.TB, nodes int, conf string) *cluster {
	c := &cluster{t: t, now: time.Unix(1_800_000_000, 0)}
	for range nodes {
		c.join(conf)
		c.members[len(c.members)-1].works = true
	}
	for range 3 {
		c.settle()
	}
	return c
}

// join adds a node that has had no other config.
func (c *cluster) join(conf string) {
	i := len(c.members)
	local := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
	m := &member{name: fmt.Sprintf("node%d", i+1), dir: c.t.TempDir()}
	m.node = backend.Node{Name: m.name, WireGuard: true, Underlays: []backend.Underlay{{Dev: "eth0", Local: local, Public: local, MTU: 1500,
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	m.lease = subnet.Lease{Node: m.name, Stacks: []subnet.Stack{{
		Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24), Underlay: local}}}
	c.members = append(c.members, m)
	c.restart(m, conf)
}

// restart has a node's agent start with a network config, as twilld does.
func (c *cluster) restart(m *member, conf string) {
	c.t.Helper()
	next, err := subnet.ParseConfig([]byte(`{"Network":"10.244.0.0/16","Backend":` + conf + `}`))
	if err != nil {
		c.t.Fatal(err)
	}
	if m.config.Backend != "" {
		next.Kept = append([]json.RawMessage{m.config.Options}, m.kept...)
	}
	m.config, m.works = next, false
	if m.backend, _, err = registry.NewKept(next); err != nil {
		c.t.Fatal(err)
	}
	if r, ok := m.backend.(backend.Runner); ok {
		if err := r.Prepare(c.t.Context(), backend.Env{Dir: m.dir, Log: slog.New(slog.DiscardHandler)}); err != nil {
			c.t.Fatal(err)
		}
	}
	m.keep()
}

// keep notes what the checkpoint has.
func (m *member) keep() {
	m.kept = nil
	if t, ok := m.backend.(backend.Transition); ok {
		m.kept = t.Kept(m.lease)
	}
}

// see has a node see the store as it is.
func (c *cluster) see(m *member) {
	m.seen, m.sawAt = nil, c.now
	for _, o := range c.members {
		if o != m {
			m.seen = append(m.seen, o.lease)
		}
	}
}

func (m *member) snapshot() subnet.Snapshot { return subnet.Snapshot{Local: m.lease, Peers: m.seen} }

// publish has a node publish what it should.
func (c *cluster) publish(m *member) {
	c.now = c.now.Add(time.Second)
	bare := subnet.Lease{Node: m.name, Backend: m.config.Backend, Stacks: slices.Clone(m.lease.Stacks)}
	snap := m.snapshot()
	if t, ok := m.backend.(backend.Transition); ok {
		made, err := t.Lease(m.node, bare, m.lease, &snap, m.works, c.now)
		if err != nil {
			c.t.Fatal(err)
		}
		m.lease = made
	} else {
		for i, s := range bare.Stacks {
			data, err := m.backend.Publish(m.node, m.lease, s.Family())
			if err != nil {
				c.t.Fatal(err)
			}
			bare.Stacks[i].Data = data
		}
		m.lease = bare
	}
	m.keep()
}

// settle has all nodes see and publish until nothing changes.
func (c *cluster) settle() {
	for range 14 {
		c.now = c.now.Add(10 * time.Second)
		for _, m := range c.members {
			m.works = true
			c.see(m)
			c.publish(m)
		}
	}
}

// desired returns what a node's kernel has.
func (m *member) desired() (netstate.State, []subnet.Skip) {
	b := m.backend
	if t, ok := b.(backend.Transition); ok {
		b = t.For(m.lease)
	}
	return b.Desired(m.node, transition.Seen(m.config.Backend, b, m.snapshot().WithEarlier()))
}

// passes returns an error if packets of one node's pods do not reach the other's: the way that the first one's route takes
// has to end in something that the other one has.
func passes(from, to *member, state, have netstate.State) error {
	subnet := to.lease.Stacks[0].Subnet
	for _, o := range state.Sorted() {
		r, ok := o.(netstate.Route)
		if !ok || r.Dst != subnet {
			continue
		}
		if _, ok := state[netstate.Key{Kind: netstate.KindLink, Name: r.Dev}].(netstate.WireGuard); ok {
			return errors.Join(knows(from, to, state), knows(to, from, have))
		}
		if t, ok := state[netstate.Key{Kind: netstate.KindLink, Name: r.Dev}].(netstate.Tunnel); ok {
			if _, ok := have[t.Key()]; !ok {
				return fmt.Errorf("%s has no device %s", to.name, t.Name)
			}
		}
		device, isTunnel := state[netstate.Key{Kind: netstate.KindLink, Name: r.Dev}].(netstate.VXLAN)
		if !isTunnel {
			if r.Via != to.node.Underlays[0].Local {
				return fmt.Errorf("via %s", r.Via)
			}
			return nil
		}
		neigh, _ := state[netstate.Neigh{Dev: r.Dev, IP: r.Via}.Key()].(netstate.Neigh)
		for _, o := range have.Sorted() {
			if v, ok := o.(netstate.VXLAN); ok && v.VNI == device.VNI && v.Port == device.Port {
				if v.MAC != neigh.MAC {
					return fmt.Errorf("to %s, and %s has %s", neigh.MAC, v.Name, v.MAC)
				}
				return nil
			}
		}
		return fmt.Errorf("%s has no device with VNI %d and port %d", to.name, device.VNI, device.Port)
	}
	return errors.New("there is no route")
}

// knows returns an error if a node's WireGuard has not the other node as its peer, whose packets it drops then.
func knows(who, whom *member, state netstate.State) error {
	for _, o := range state {
		if p, ok := o.(netstate.Peer); ok && slices.Contains(p.Allowed[:], whom.lease.Stacks[0].Subnet) {
			return nil
		}
	}
	return fmt.Errorf("the WireGuard of %s does not know %s", who.name, whom.name)
}

// check fails the test if a pair of nodes is apart.
func (c *cluster) check(what string) {
	c.t.Helper()
	states := map[*member]netstate.State{}
	for _, m := range c.members {
		states[m], _ = m.desired()
	}
	for _, a := range c.members {
		for _, b := range c.members {
			if a == b {
				continue
			}
			if err := passes(a, b, states[a], states[b]); err != nil {
				c.t.Fatalf("%s: %s to %s: %v\n%s: %s\n%s: %s", what, a.name, b.name, err, a.name, text(a.lease), b.name, text(b.lease))
			}
		}
	}
}

func text(l subnet.Lease) string { return l.Backend + " " + string(l.Stacks[0].Data) }

// plain fails the test unless all nodes are as if they had never had another config than conf.
func (c *cluster) plain(conf string) {
	c.t.Helper()
	fresh := newCluster(c.t, len(c.members), conf)
	for i, m := range c.members {
		got, _ := m.desired()
		want, _ := fresh.members[i].desired()
		if strings.Contains(text(m.lease), "Ways") || m.lease.Backend != fresh.members[i].lease.Backend {
			c.t.Errorf("%s publishes %s, want %s", m.name, text(m.lease), text(fresh.members[i].lease))
		}
		if len(m.kept) > 0 || shape(got) != shape(want) {
			c.t.Errorf("%s keeps %s and has\n%s\nwant\n%s", m.name, m.kept, shape(got), shape(want))
		}
	}
}

// shape returns a state without MAC addresses: those of devices go on.
func shape(s netstate.State) string {
	var lines []string
	for _, o := range s.Sorted() {
		switch o := o.(type) {
		case netstate.VXLAN:
			o.MAC = netstate.MAC{}
			lines = append(lines, fmt.Sprint(o))
		case netstate.Route, netstate.Tunnel, netstate.WireGuard:
			lines = append(lines, fmt.Sprint(o))
		}
	}
	return strings.Join(lines, "\n")
}

var confs = []string{
	`{"Type":"vxlan"}`,
	`{"Type":"host-gw"}`,
	`{"Type":"vxlan","VNI":7}`,
	`{"Type":"vxlan","Port":4789}`,
	`{"Type":"vxlan","VNI":7,"Port":4790}`,
	`{"Type":"vxlan","DirectRouting":true}`,
	`{"Type":"wireguard"}`,
	`{"Type":"ipip"}`,
}

// TestRollout changes the backend node by node, in each pair of ways, with a rollback in the middle: at no time is a pair apart,
// however late the nodes see each other's records, and nothing is left at the end.
func TestRollout(t *testing.T) {
	for i, from := range confs {
		for j, to := range confs {
			if i == j {
				continue
			}
			t.Run(from+" to "+to, func(t *testing.T) {
				for seed := range seeds {
					c := newCluster(t, 4, from)
					c.rollout(rand.New(rand.NewPCG(seed, 1)), to)
					c.plain(to)
					c.rollout(rand.New(rand.NewPCG(seed, 2)), from)
					c.plain(from)
				}
			})
		}
	}
}

// TestJoin: a node that is new in the middle of a change, and has never had another way than the new one, reaches the nodes that
// offer it, although the backend of their records is still that of before.
func TestJoin(t *testing.T) {
	for i, from := range confs {
		for j, to := range confs {
			if i == j {
				continue
			}
			c := newCluster(t, 3, from)
			old := c.members[0].lease.Backend
			for _, m := range c.members {
				c.restart(m, to)
				m.works = true
				c.publish(m)
			}
			c.join(to)
			c.publish(c.members[3])
			for _, m := range c.members {
				c.see(m)
				if m.lease.Backend != old && m != c.members[3] {
					t.Fatalf("%s to %s: the record is %s", from, to, text(m.lease))
				}
			}
			c.check(from + " to " + to)
			c.settle()
			c.check("at the end")
			c.plain(to)
		}
	}
}

// seeds is how many orders of events each change is tried in.
const seeds = uint64(7)

// rollout restarts the nodes in an order of r's, and lets anything happen between the restarts.
func (c *cluster) rollout(r *rand.Rand, conf string) {
	c.t.Helper()
	todo := r.Perm(len(c.members))
	back := r.IntN(len(todo) + 1) // so many are restarted with the config of before, and again
	before := string(c.members[0].config.Options)
	for _, i := range todo[:back] {
		c.restart(c.members[i], conf)
		c.drift(r)
	}
	if r.IntN(2) == 0 {
		for _, i := range todo[:back] {
			c.restart(c.members[i], before)
			c.drift(r)
		}
		back = 0
	}
	for _, i := range todo[back:] {
		c.restart(c.members[i], conf)
		c.drift(r)
	}
	c.settle()
	c.check("at the end")
}

// latest is how long a record may take to the other nodes.
const latest = 20 * time.Second

// drift lets nodes see the store and publish, each when it likes.
func (c *cluster) drift(r *rand.Rand) {
	c.t.Helper()
	for range r.IntN(30) {
		m := c.members[r.IntN(len(c.members))]
		for _, late := range c.members {
			if c.now.Sub(late.sawAt) > latest {
				c.see(late)
			}
		}
		switch r.IntN(3) {
		case 0:
			c.see(m)
		case 1:
			c.publish(m)
		case 2:
			m.works = true
		}
		c.check("in between")
	}
}

// TestPeerWithoutPort has a node of flannel in the cluster, whose record says no port: it stays on the one that it was first
// reached by, whatever configs the others get, and however often they start again.
func TestPeerWithoutPort(t *testing.T) {
	const other, usual, third = `{"Type":"vxlan","Port":4789}`, `{"Type":"vxlan"}`, `{"Type":"vxlan","Port":4790}`
	for first, confs := range map[int][]string{
		8472: {usual, other, other, usual, usual, other, usual, third, third},
		4789: {other, usual, usual, other, other, usual, other, third, third},
	} {
		c := newCluster(t, 1, confs[0])
		m := c.members[0]
		flannel := subnet.Lease{Node: "flannel", Backend: "vxlan", Stacks: []subnet.Stack{{
			Subnet: netip.MustParsePrefix("10.244.9.0/24"), Underlay: netip.MustParseAddr("192.0.2.9"),
			Data: json.RawMessage(`{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`)}}}
		for i, conf := range confs {
			c.restart(m, conf)
			for range 10 {
				c.now = c.now.Add(10 * time.Second)
				m.seen, m.works = []subnet.Lease{flannel}, true
				c.publish(m)
			}
			state, skips := m.desired()
			if port := portTo(state, flannel); port != first {
				t.Errorf("first port %d, config %d, %s: flannel's node is reached by port %d, %v", first, i, conf, port, skips)
			}
		}
	}
}

// portTo returns the port of the device that a route to a peer leads through.
func portTo(state netstate.State, peer subnet.Lease) int {
	for _, o := range state {
		if r, ok := o.(netstate.Route); ok && r.Dst == peer.Stacks[0].Subnet {
			v, _ := state[netstate.Key{Kind: netstate.KindLink, Name: r.Dev}].(netstate.VXLAN)
			return v.Port
		}
	}
	return 0
}
