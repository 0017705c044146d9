package kube

import (
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// first waits for the first snapshot.
func (w *snapshots) first(t *testing.T) subnet.Snapshot {
	t.Helper()
	testwait.Until(t, "the first snapshot", func() bool { return len(w.each()) > 0 })
	return w.each()[0]
}

// firstOfItsMode: the first agent that reads Lease objects is a guard, and does not lose its peers while it finds out.
func firstOfItsMode(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, flannelNode(2))
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	acquire(t, store, want4)
	if got := names(watching(t, store).first(t)); len(got) != 2 {
		t.Errorf("the first snapshot has the peers %v only", got)
	}
}

// nobodyPublishes: where there is no guard, as nobody can write Lease objects, agents read Nodes.
func nobodyPublishes(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	s.reserve(t, "10.244.7.0/24", new("kubetest-other"))
	store, waits := s.open(t, leaseOptions(subnet.StoreLeases))
	acquire(t, store, want4)
	if got := names(watching(t, store).first(t)); len(got) != 1 {
		t.Errorf("the first snapshot has the peers %v only", got)
	}
	if !waits.has(taskLeases, "no node has Lease objects that can be read") {
		t.Errorf("told %q", waits.text)
	}
}

// guardsForget: while guards that start again do not ask yet, those that read Nodes go on with that.
func guardsForget(t *testing.T, s *server) {
	all, _ := s.agents(t, 4, subnet.StoreLeases)
	flannel := flannelNode(1)
	s.createNode(t, flannel)
	w := all[3]
	testwait.Until(t, "flannel's node", func() bool { return slices.Contains(names(w.last()), flannel.Name) })
	for range 15 { // guards write again at once five times, and then once a second
		for _, c := range s.claims(t) {
			s.annotateObject(t, c.Name, map[string]any{"read-nodes": nil})
		}
		testwait.Pause(t, 100*time.Millisecond, "guards see it and write again")
	}
	testwait.Until(t, "guards to ask again", func() bool { return len(s.asking(t)) > 0 })
	w.keeps(t, 4)
}
