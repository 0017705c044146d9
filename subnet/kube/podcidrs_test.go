package kube

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// TestCheckpoint: what one store knows, the next one knows; what is no checkpoint changes nothing.
func TestCheckpoint(t *testing.T) {
	var before, after Store
	before.podCIDRs.put("a", "10.244.1.0/24")
	before.podCIDRs.rewound("7")
	after.Restore(before.Checkpoint())
	after.Restore(json.RawMessage(`{"Revision":7}`))
	if p := &after.podCIDRs; p.get("a") != "10.244.1.0/24" || p.at() != "7" || p.get("b") != "" {
		t.Errorf("the next store knows %v of revision %q", p.byUID, p.revision)
	}
}

// TestRevisions: a revision that goes back makes all forgotten, and one that is unknown says nothing.
func TestRevisions(t *testing.T) {
	var p podCIDRs
	if p.rewound("9") || p.at() != "9" {
		t.Errorf("the first revision is an earlier one, or is %q", p.at())
	}
	p.put("a", "10.244.1.0/24")
	p.put("b", "10.244.2.0/24")
	p.remove("b")
	for _, step := range []struct {
		now  string
		back bool
		at   string
	}{{"9", false, "9"}, {"10", false, "10"}, {"9", true, "9"}, {"11", false, "11"}, {"", false, ""}, {"5", false, "5"}} {
		if p.get("a") == "" || p.get("b") != "" {
			t.Errorf("at %q known is %v", step.now, p.byUID)
		}
		if back := p.rewound(step.now); back != step.back || p.at() != step.at || p.empty() != back {
			t.Errorf("at %q: back %t, at %q, nothing known %t; want %t, %q", step.now, back, p.at(), p.empty(), step.back, step.at)
		}
		p.put("a", "10.244.1.0/24")
	}
	for _, step := range [][2]string{{"4", "5"}, {"100", "100"}, {"20", "100"}, {"", "100"}} {
		if p.advance(step[0]); p.at() != step[1] {
			t.Errorf("advanced by %q to %q, want %q", step[0], p.at(), step[1])
		}
	}
}

// TestRetain: only what is asked for is kept, and nothing is made up.
func TestRetain(t *testing.T) {
	p := podCIDRs{byUID: map[types.UID]string{"a": "10.244.1.0/24", "b": "10.244.2.0/24"}}
	p.retain([]record{{uid: "b"}, {uid: "c"}})
	if len(p.byUID) != 1 || p.get("b") != "10.244.2.0/24" {
		t.Errorf("kept are %v, want b's alone", p.byUID)
	}
}

func latePodCIDR(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	store, waits := s.open(t, Options{})
	got := make(chan subnet.Lease, 1)
	ctx := background(t)
	go func() {
		l, err := store.Acquire(ctx, want4)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	testwait.Until(t, "word of it", func() bool { return waits.has("acquire the lease", "has no podCIDR") })
	testwait.Until(t, "the event", func() bool { return len(s.eventsOf(t, self, "NoPodCIDR")) == 1 })
	select {
	case l := <-got:
		t.Fatalf("acquired %+v without a podCIDR", l)
	default:
	}
	s.patchSpec(t, self, `{"spec":{"podCIDR":"10.244.7.0/24","podCIDRs":["10.244.7.0/24"]}}`)
	select {
	case l := <-got:
		if l.Stacks[0].Subnet.String() != "10.244.7.0/24" {
			t.Errorf("got %+v", l)
		}
	case <-time.After(testwait.Limit):
		t.Fatal("the podCIDR came, and the lease did not")
	}
	if !waits.has("acquire the lease: ok") {
		t.Error("no word that the wait is over")
	}
}

// changedPodCIDR deletes the node and creates it again, which is the only way to change a podCIDR.
func changedPodCIDR(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	first := acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the first snapshot", func() bool { return w.last().Local.Equal(first) })
	before := s.node(t, self).UID
	s.deleteNode(t, self)
	s.createNode(t, testNode(self))
	loop.Sleep(t.Context(), 300*time.Millisecond)
	if l := w.last().Local; !l.Equal(first) {
		t.Errorf("without a podCIDR the local lease became %+v", l)
	}
	s.patchSpec(t, self, `{"spec":{"podCIDR":"10.244.8.0/24","podCIDRs":["10.244.8.0/24"]}}`)
	testwait.Until(t, "the new local lease", func() bool {
		l := w.last().Local
		return len(l.Stacks) == 1 && l.Stacks[0].Subnet.String() == "10.244.8.0/24"
	})
	testwait.Until(t, "the annotations of the new node", func() bool {
		n := s.node(t, self)
		return n.UID != before && n.Annotations[note+"public-ip"] == "192.0.2.200" && n.Annotations[note+"kube-subnet-manager"] == "true"
	})
	if n := len(s.eventsOf(t, self, "LeaseNotPublished")); n != 1 {
		t.Errorf("%d events say that the new node has no podCIDR, want one", n)
	}
	for _, snap := range w.each() {
		if len(snap.Peers) != 1 {
			t.Errorf("a snapshot has the peers %v", names(snap))
		}
	}
}

func foreignPodCIDR(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.9.0.0/24"))
	store, _ := s.open(t, Options{})
	_, err := store.Acquire(t.Context(), want4)
	wantError(t, err, `node "kubetest-self": its podCIDR 10.9.0.0/24 is outside of the network 10.244.0.0/16`)
	store, _ = s.open(t, Options{Networks: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16"), netip.MustParsePrefix("10.9.0.0/16")}})
	if l := acquire(t, store, want4); l.Stacks[0].Subnet.String() != "10.9.0.0/24" {
		t.Errorf("with another network of pods: got %+v", l)
	}
}

func missingFamily(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{Pools: []subnet.Pool{pool4, pool6}})
	want := want4
	want.Stacks = append(slices.Clone(want4.Stacks), subnet.Stack{Underlay: netip.MustParseAddr("2001:db8::1")})
	_, err := store.Acquire(t.Context(), want)
	wantError(t, err, "its podCIDRs (10.244.7.0/24) have none in the network fd00:10:244::/48")
}
