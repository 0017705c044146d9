package kube

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/testwait"
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
	store, waits := s.open(t, Options{Pools: pools, ClaimNamespace: claimSpace})
	if a := asks(store); before {
		a.before = take
	} else {
		a.after = take
	}
	mine = acquire(t, store, want4).Stacks[0].Subnet.String()
	if len(waits.text) > 0 {
		t.Errorf("that another node was quicker is told of as an error: %q", waits.text)
	}
	return mine, s.node(t, rival).Spec.PodCIDR
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

// claimCollected: the garbage collector was quicker than the deletion of the old claim.
func claimCollected(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	o := Options{ClaimNamespace: claimSpace}
	first, _ := s.open(t, o)
	had := acquire(t, first, want4)
	s.deleteNode(t, self)
	s.createNode(t, testNode(self))
	store, waits := s.open(t, o)
	asks(store).before = func(r *http.Request) {
		if r.Method == http.MethodDelete {
			s.clearClaims(t)
		}
	}
	if got := acquire(t, store, want4); !got.Equal(had) || len(waits.text) > 0 {
		t.Errorf("leased %+v, told %q; want %+v without a word", got, waits.text, had)
	}
}

// onPodCIDR lets before happen once, just before a store writes its node's podCIDRs, and returns what the store leased.
func onPodCIDR(t *testing.T, s *server, before func()) (subnet.Lease, *reports) {
	t.Helper()
	s.createNode(t, testNode(self))
	store, waits := s.open(t, Options{ClaimNamespace: claimSpace})
	var once sync.Once
	asks(store).before = func(r *http.Request) {
		if r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/"+self {
			once.Do(before)
		}
	}
	return acquire(t, store, want4), waits
}

// controllerQuicker: kube-controller-manager assigns a podCIDR after the store has claimed another subnet.
func controllerQuicker(t *testing.T, s *server) {
	l, waits := onPodCIDR(t, s, func() {
		s.reserve(t, "10.244.9.0/24", new(self))
		s.patchSpec(t, self, `{"spec":{"podCIDR":"10.244.77.0/24","podCIDRs":["10.244.77.0/24"]}}`)
	})
	if l.Stacks[0].Subnet.String() != "10.244.77.0/24" || !waits.has(taskAcquire, "changed while its podCIDR was written") {
		t.Errorf("leased %+v, told %q; want what the controller assigned", l, waits.text)
	}
	if !s.has(t, "10.244.9.0/24") {
		t.Errorf("the claims are %+v; want the administrator's alone, since other nodes may have the other subnet", s.claims(t))
	}
}

// nodeReplaced: a Node is deleted and made again after the store has claimed a subnet for the first one.
func nodeReplaced(t *testing.T, s *server) {
	l, _ := onPodCIDR(t, s, func() {
		s.deleteNode(t, self)
		s.createNode(t, testNode(self))
	})
	all, n := s.claims(t), s.node(t, self)
	if len(all) != 1 || all[0].OwnerReferences[0].UID != n.UID || all[0].Name != claimName(l.Stacks[0].Subnet) || n.Spec.PodCIDR == "" {
		t.Errorf("leased %+v, claims are %+v, want one of the new Node %s", l, all, n.UID)
	}
}

// alwaysQuicker: a node that loses every claim gives up after twenty, and says so.
func alwaysQuicker(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	s.createNode(t, testNode(rival))
	r := &node{ObjectMeta: metav1.ObjectMeta{Name: rival, UID: s.node(t, rival).UID}}
	store, waits := s.open(t, Options{ClaimNamespace: claimSpace})
	cfg, err := kubeclient.Server{Kubeconfig: s.kubeconfig(t, agentUser)}.Config()
	must(t, err)
	cfg.QPS = -1 // 60 calls would take long otherwise
	shared, err := kubeclient.New(cfg)
	must(t, err)
	store.api, err = newClient(shared)
	must(t, err)
	asked, lost := asks(store), 0
	asked.before = func(req *http.Request) {
		if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/leases") || waits.has("other nodes") {
			return
		}
		body, err := req.GetBody()
		must(t, err)
		var c claim
		must(t, json.NewDecoder(body).Decode(&c))
		p, _ := claimed(c.Name)
		must(t, s.admin.createClaim(req.Context(), claimSpace, r, p))
		lost++
	}
	acquire(t, store, want4)
	if lost != 20 || !waits.has(taskAcquire, "has no podCIDR yet: other nodes were quicker to claim 20 subnets") {
		t.Errorf("lost %d claims, told %q; want 20, and word of it", lost, waits.text)
	}
}

// claimCallsFail: whichever call gets no answer while a node that came back claims subnets, that is told of, and it has
// its old subnets in the end.
func claimCallsFail(t *testing.T, s *server) {
	o := Options{ClaimNamespace: claimSpace, Pools: []subnet.Pool{pool4, pool6}}
	want := want4
	want.Stacks = append(slices.Clone(want4.Stacks), subnet.Stack{Underlay: netip.MustParseAddr("2001:db8::1")})
	s.createNode(t, testNode(self))
	first, _ := s.open(t, o)
	had := acquire(t, first, want)
	for k := 0; ; k++ {
		s.deleteNode(t, self)
		s.createNode(t, testNode(self))
		store, waits := s.open(t, o)
		asked := asks(store)
		asked.fail = func(n int) bool { return n == k }
		if got := acquire(t, store, want); !got.Equal(had) {
			t.Errorf("without an answer to call %d leased %+v, want %+v", k, got, had)
		}
		all, uid := s.claims(t), s.node(t, self).UID
		if len(all) != 2 || all[0].OwnerReferences[0].UID != uid || all[1].OwnerReferences[0].UID != uid {
			t.Errorf("without an answer to call %d the claims are %+v", k, all)
		}
		asked.wantBounded(t)
		if asked.count("") <= k {
			return
		}
		if !waits.has(taskAcquire, "cut off by the test") {
			t.Errorf("that call %d failed was not told of: %q", k, waits.text)
		}
	}
}

// claimBadAnnotation: what only a change of the Node mends is told of once and not tried again and again.
func claimBadAnnotation(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	store, _ := s.open(t, Options{ClaimNamespace: claimSpace})
	acquire(t, store, want4)
	watching(t, store)
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "x"})
	testwait.Until(t, "the event", func() bool { return len(s.eventsOf(t, self, "LeaseNotPublished")) == 1 })
}
