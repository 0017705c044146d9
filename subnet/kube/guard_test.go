package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// agents starts agents on nodes kubetest-agent-0 to n-1, one after another, so that they are of different age, with
// their modes in turn.
func (s *server) agents(t *testing.T, n int, modes ...string) (all []*snapshots, stores []*Store) {
	t.Helper()
	return s.agentsBehind(t, n, func(int, *Store) {}, modes...)
}

// agentsBehind is agents; prepare gets each one's store before it is used.
func (s *server) agentsBehind(
	t *testing.T, n int, prepare func(int, *Store), modes ...string,
) (all []*snapshots, stores []*Store) {
	t.Helper()
	for i := range n {
		o := leaseOptions(modes[i%len(modes)])
		o.Node = fmt.Sprintf("kubetest-agent-%d", i)
		s.createNode(t, testNode(o.Node, fmt.Sprintf("10.244.%d.0/24", 100+i)))
		store, _ := s.open(t, o)
		store.patience = patience{settle: 200 * time.Millisecond, calm: 500 * time.Millisecond, linger: time.Second, spread: time.Millisecond, blind: 200 * time.Millisecond}
		prepare(i, store)
		acquire(t, store, wantOf(o.Node))
		all, stores = append(all, watching(t, store)), append(stores, store)
	}
	for _, w := range all {
		testwait.Until(t, "all agents", func() bool { return len(w.last().Peers) == n-1 })
	}
	return all, stores
}

// asking are the nodes whose Lease objects ask to read Nodes.
func (s *server) asking(t *testing.T) (nodes []string) {
	t.Helper()
	for _, c := range s.claims(t) {
		if c.Annotations[note+"read-nodes"] != "" {
			nodes = append(nodes, *c.Spec.HolderIdentity)
		}
	}
	return nodes
}

// keeps checks that every snapshot had n peers at least, once it had them.
func (w *snapshots) keeps(t *testing.T, n int) {
	t.Helper()
	had := false
	for _, snap := range w.each() {
		if had = had || len(snap.Peers) >= n; had && len(snap.Peers) < n {
			t.Errorf("a snapshot has the peers %v only", names(snap))
		}
	}
}

// flannelJoins: agents that read Lease objects see a node of flannel, whatever the guards' own modes are, and forget it
// when it leaves.
func flannelJoins(t *testing.T, s *server) {
	for _, modes := range [][]string{{subnet.StoreLeases}, {subnet.StoreBoth, subnet.StoreLeases}} {
		t.Run(fmt.Sprint(modes), func(t *testing.T) {
			s.clear(t)
			s.clearClaims(t)
			all, stores := s.agents(t, 5, modes...)
			if asking := s.asking(t); len(asking) > 0 {
				t.Errorf("%v ask to read Nodes, and no other node is there", asking)
			}
			flannel := flannelNode(1)
			s.createNode(t, flannel)
			for i, w := range all {
				testwait.Until(t, fmt.Sprintf("flannel's node, at agent %d", i), func() bool {
					return slices.Contains(names(w.last()), flannel.Name)
				})
			}
			if node, guard, err := stores[4].Asked(t.Context()); err != nil || node != flannel.Name || !slices.Contains(s.asking(t), guard) {
				t.Errorf("%q asks for the sake of %q, %v", guard, node, err)
			}
			for _, node := range s.asking(t) {
				if node > "kubetest-agent-2" {
					t.Errorf("%s asks to read Nodes, and is none of the oldest three", node)
				}
			}
			s.deleteNode(t, flannel.Name)
			for i, w := range all {
				testwait.Until(t, fmt.Sprintf("it to be gone, at agent %d", i), func() bool { return len(w.last().Peers) == 4 })
			}
			testwait.Until(t, "nobody to ask any more", func() bool { return len(s.asking(t)) == 0 })
			for _, w := range all {
				w.keeps(t, 4)
			}
		})
	}
}

// asksFor are the nodes for whose sake Lease objects ask to read Nodes.
func (s *server) asksFor(t *testing.T) (nodes []string) {
	t.Helper()
	for _, c := range s.claims(t) {
		if node := c.Annotations[note+"read-nodes"]; node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// twoStrangers: guards go on asking for the sake of one node while another one comes and goes, as each write of theirs
// wakes all agents; when it is gone, they ask for the other's sake.
func twoStrangers(t *testing.T, s *server) {
	all, _ := s.agents(t, 4, subnet.StoreLeases)
	older, named := flannelNode(1), flannelNode(2)
	delete(older.Annotations, note+"kube-subnet-manager")
	s.createNode(t, older)
	s.createNode(t, named)
	asked := func(node string) func() bool {
		return func() bool { return slices.Equal(s.asksFor(t), []string{node, node, node}) }
	}
	testwait.Until(t, "all guards to ask", asked(named.Name))
	before := s.claims(t)
	for _, managed := range []any{"true", nil, "true"} {
		s.annotate(t, older.Name, map[string]any{"kube-subnet-manager": managed})
		testwait.Until(t, "a node that comes and goes", func() bool {
			return slices.Contains(names(all[3].last()), older.Name) == (managed != nil)
		})
		loop.Sleep(t.Context(), 600*time.Millisecond) // three times what settles
	}
	if now := s.claims(t); !slices.EqualFunc(now, before, func(a, b claim) bool { return a.ResourceVersion == b.ResourceVersion }) {
		t.Errorf("guards wrote, and ask for the sake of %q now", s.asksFor(t))
	}
	s.deleteNode(t, named.Name)
	testwait.Until(t, "all guards to ask for the other's sake", func() bool {
		if len(s.asksFor(t)) != maxGuards {
			t.Fatalf("guards ask for the sake of %q only", s.asksFor(t))
		}
		return asked(older.Name)()
	})
}

// staleObjects: an agent of Store nodes does not keep what an earlier one left in Lease objects; peers read its Node.
func staleObjects(t *testing.T, s *server) {
	all, _ := s.agents(t, 4, subnet.StoreLeases)
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	before, _ := s.open(t, leaseOptions(subnet.StoreBoth))
	acquire(t, before, want4)
	w := all[3]
	testwait.Until(t, "the node", func() bool { return slices.Contains(names(w.last()), self) })
	now, _ := s.open(t, leaseOptions(subnet.StoreNodes))
	moved := want4
	moved.Backend = "host-gw"
	l := acquire(t, now, moved)
	testwait.Until(t, "what the Node says", func() bool {
		return slices.ContainsFunc(w.last().Peers, func(p subnet.Lease) bool { return p.Equal(l) })
	})
	w.keeps(t, 4)
}

// noGuardNeeded: where all nodes publish Lease objects, nobody but the oldest three reads other Nodes.
func noGuardNeeded(t *testing.T, s *server) {
	s.agents(t, 4, subnet.StoreLeases)
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	asked := asks(store)
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "all peers", func() bool { return len(w.last().Peers) == 4 })
	whole := asked.whole()
	if slices.Contains(whole, "nodes") || slices.ContainsFunc(whole, func(name string) bool { return name == "kubetest-agent-0" }) {
		t.Errorf("read in full are %q", whole)
	}
}

// blindReader: an agent that may not read Lease objects reads Nodes.
func blindReader(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, leaseOptions(subnet.StoreLeases))
	store.patience.blind = time.Second
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the peer", func() bool { return len(w.last().Peers) == 1 })
	if !waits.has(taskWatchLeases, "the API server forbids list on leases in namespace kube-twill") {
		t.Errorf("told %q", waits.text)
	}
}

// forgedObject: a node that publishes a subnet in a Lease object that its Node does not have is read from its Node.
func forgedObject(t *testing.T, s *server) {
	all, _ := s.agents(t, 4, subnet.StoreLeases)
	evil := flannelNode(7)
	s.createNode(t, evil)
	n := &node{ObjectMeta: evil.ObjectMeta}
	n.UID = s.node(t, evil.Name).UID
	store, _ := s.open(t, Options{Node: evil.Name, Store: subnet.StoreBoth, LeaseNamespace: claimSpace})
	forged := wantOf(evil.Name)
	forged.Stacks = []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.99.0/24"), Underlay: netip.MustParseAddr("192.0.2.66")}}
	must(t, store.publishObjects(t.Context(), n, forged, nil))
	w := all[3]
	testwait.Until(t, "what the Node says", func() bool {
		return slices.ContainsFunc(w.last().Peers, func(p subnet.Lease) bool {
			return p.Node == evil.Name && p.Stacks[0].Subnet.String() == "10.244.7.0/24"
		})
	})
	w.keeps(t, 3)
}

// guardRestarts: a guard that starts again goes on asking, and whoever starts meanwhile sees flannel's node at once.
func guardRestarts(t *testing.T, s *server) {
	o := leaseOptions(subnet.StoreLeases)
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	flannel := flannelNode(1)
	s.createNode(t, flannel)
	for range 3 {
		store, _ := s.open(t, o)
		store.patience = patience{settle: 200 * time.Millisecond, calm: time.Minute, linger: time.Minute, spread: time.Second, blind: 200 * time.Millisecond}
		before := len(s.asking(t))
		acquire(t, store, want4)
		if now := len(s.asking(t)); now != before {
			t.Errorf("%d asked before the start, and %d do now", before, now)
		}
		w := watching(t, store)
		testwait.Until(t, "the peer", func() bool { return len(w.last().Peers) == 1 })
		testwait.Until(t, "it to be asked for", func() bool { return len(s.asking(t)) == 1 })
		if first := w.each()[0]; before > 0 && len(first.Peers) != 1 {
			t.Errorf("the first snapshot has the peers %v", names(first))
		}
	}
}
