package kube

import (
	"net/http"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/subnet"
)

const rival = "kubetest-rival"

// raceFor lets a node come back, whose old claim take frees and claims for another node, before or after the node
// deletes it. It returns what both have then.
func raceFor(t *testing.T, s *server, before bool) (mine, theirs string) {
	t.Helper()
	pools := []subnet.Pool{smallPool("10.244.7.0", "10.244.8.0")}
	s.createNode(t, testNode(self))
	first, _ := s.open(t, Options{Pools: pools, ClaimNamespace: claimSpace})
	only := acquire(t, first, want4).Stacks[0].Subnet
	s.deleteNode(t, self)
	s.createNode(t, testNode(self))
	s.createNode(t, testNode(rival))
	r := &node{ObjectMeta: metav1.ObjectMeta{Name: rival, UID: s.node(t, rival).UID}}
	take := func(req *http.Request) {
		if req.Method != http.MethodDelete {
			return
		}
		ctx := t.Context()
		for _, c := range s.claims(t) { // the garbage collector
			if err := s.admin.deleteClaim(ctx, claimSpace, c); err != nil {
				t.Error(err)
			}
		}
		if err := s.admin.createClaim(ctx, claimSpace, r, only); err != nil {
			t.Error(err)
		}
		if err := s.admin.setPodCIDRs(ctx, r, []netip.Prefix{only}); err != nil {
			t.Error(err)
		}
	}
	store, _ := s.open(t, Options{Pools: pools, ClaimNamespace: claimSpace})
	if a := asks(store); before {
		a.before = take
	} else {
		a.after = take
	}
	return acquire(t, store, want4).Stacks[0].Subnet.String(), s.node(t, rival).Spec.PodCIDR
}

// claimLost: the garbage collector and another node were quicker than the deletion of the old claim.
func claimLost(t *testing.T, s *server) {
	if mine, theirs := raceFor(t, s, true); mine == theirs {
		t.Errorf("both nodes have %s", mine)
	}
}

// claimStolen: another node claimed between the deletion of the old claim and the new one.
func claimStolen(t *testing.T, s *server) {
	if mine, theirs := raceFor(t, s, false); mine == theirs {
		t.Errorf("both nodes have %s", mine)
	}
}
