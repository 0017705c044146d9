package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

func restored(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	lease := acquire(t, store, want4)
	published := s.node(t, self).Annotations
	var mu sync.Mutex
	var disputes []subnet.Lease
	store.OnDispute(func(l subnet.Lease) {
		mu.Lock()
		defer mu.Unlock()
		disputes = append(disputes, l)
	})
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	for _, damage := range []map[string]any{
		{"public-ip": "203.0.113.9"},
		{"backend-data": `{"VNI":2}`},
		{"backend-data": "{"},
		{"backend-type": nil},
		{"kube-subnet-manager": "false"},
		{"kube-subnet-manager": nil, "backend-type": nil, "backend-data": nil, "public-ip": nil},
	} {
		s.annotate(t, self, damage)
		began := time.Now()
		testwait.Until(t, "the annotations as they were", func() bool {
			have := s.node(t, self).Annotations
			for k, v := range published {
				if have[k] != v {
					return false
				}
			}
			return true
		})
		t.Logf("%v restored in %s", damage, time.Since(began).Round(time.Millisecond))
		loop.Sleep(t.Context(), time.Second) // the sixth repair in a row would have to wait its turn
	}
	for _, snap := range w.each() {
		if !snap.Local.Equal(lease) {
			t.Errorf("a snapshot has the local lease %+v, want %+v", snap.Local, lease)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if got := fmt.Sprint(disputes); got != "[{  [{invalid Prefix 203.0.113.9 []}] false}]" {
		t.Errorf("told of the disputes %s, want the one about another address", got)
	}
}

func writesDifferences(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{SetNetworkUnavailable: true})
	acquire(t, store, want4)
	w := watching(t, store)
	store.Network(true, "TwillIsUp", "")
	testwait.Until(t, "the condition", func() bool { return networkCondition(s.node(t, self)).Reason == "TwillIsUp" })
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	before := s.node(t, self).ResourceVersion
	acquire(t, store, want4)
	store.Network(true, "TwillIsUp", "")
	loop.Sleep(t.Context(), 500*time.Millisecond)
	again, _ := s.open(t, Options{})
	acquire(t, again, want4)
	if after := s.node(t, self).ResourceVersion; after != before {
		t.Error("the node was written although nothing differed")
	}
}

func familyGoes(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24", "fd00:10:244:7::/64"))
	store, _ := s.open(t, Options{Pools: []subnet.Pool{pool4, pool6}})
	want := want4
	want.Stacks = append(slices.Clone(want4.Stacks), subnet.Stack{Underlay: netip.MustParseAddr("2001:db8::1")})
	got := acquire(t, store, want)
	if len(got.Stacks) != 2 || got.Stacks[1].Subnet.String() != "fd00:10:244:7::/64" {
		t.Errorf("got %+v", got)
	}
	a := s.node(t, self).Annotations
	if a[note+"public-ipv6"] != "2001:db8::1" || a[note+"backend-v6-data"] != "null" {
		t.Errorf("got annotations %v", a)
	}
	acquire(t, store, want4)
	a = s.node(t, self).Annotations
	for _, k := range []string{"public-ipv6", "backend-v6-data"} {
		if v, ok := a[note+k]; ok {
			t.Errorf("%s is still %q", k, v)
		}
	}
	if a[note+"public-ip"] != "192.0.2.200" {
		t.Errorf("got annotations %v", a)
	}
}

func conditionOf(t *testing.T, s *server) corev1.NodeCondition {
	t.Helper()
	return conditionOfType(t, s, corev1.NodeNetworkUnavailable)
}

func conditionOfType(t *testing.T, s *server, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	for _, c := range s.node(t, self).Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// reachedWritten: the condition is written when its status or reason changes, and put back, and an agent that does not ask
// peers takes it away.
func reachedWritten(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{SetPeersReached: true})
	acquire(t, store, want4)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- store.Watch(ctx, func(subnet.Snapshot) {}) }()
	is := func(status corev1.ConditionStatus, reason, message string) func() bool {
		return func() bool {
			c := conditionOfType(t, s, peersReached)
			return c.Status == status && c.Reason == reason && c.Message == message && !c.LastTransitionTime.IsZero() == (status != "")
		}
	}
	store.Reached(false, "PeersUnreached", "of node2")
	testwait.Until(t, "the condition", is("False", "PeersUnreached", "of node2"))
	before := s.node(t, self).ResourceVersion
	store.Reached(false, "PeersUnreached", "of node3")
	loop.Sleep(t.Context(), 500*time.Millisecond)
	if s.node(t, self).ResourceVersion != before {
		t.Error("another message alone was written")
	}
	patch := map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": peersReached, "status": "True", "reason": "Other"}}}}
	must(t, s.admin.patchStatus(t.Context(), self, types.StrategicMergePatchType, patch))
	testwait.Until(t, "the condition again", is("False", "PeersUnreached", "of node2"))
	store.Reached(false, "TargetsUnreached", "of the gateway")
	testwait.Until(t, "another reason", is("False", "TargetsUnreached", "of the gateway"))
	store.Reached(true, "PeersReached", "all")
	testwait.Until(t, "the end", is("True", "PeersReached", "all"))
	if c := conditionOf(t, s); c.Status != "" {
		t.Errorf("NetworkUnavailable became %+v", c)
	}
	end()
	must(t, <-done)
	without, _ := s.open(t, Options{})
	watching(t, without)
	testwait.Until(t, "no condition", is("", "", ""))
}

func conditionWritten(t *testing.T, s *server) {
	n := testNode(self, "10.244.7.0/24")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	s.createNode(t, n)
	store, _ := s.open(t, Options{SetNetworkUnavailable: true})
	acquire(t, store, want4)
	watching(t, store)
	is := func(status corev1.ConditionStatus, reason, message string) func() bool {
		return func() bool {
			c := conditionOf(t, s)
			return c.Status == status && c.Reason == reason && c.Message == message
		}
	}
	began := time.Now()
	store.Network(false, "NoPath", "the overlay device is missing")
	testwait.Until(t, "the condition", is("True", "NoPath", "the overlay device is missing"))
	first := conditionOf(t, s).LastTransitionTime
	loop.Sleep(t.Context(), 1100*time.Millisecond) // times have whole seconds
	store.Network(false, "NoPath", "no route")
	testwait.Until(t, "the new message", is("True", "NoPath", "no route"))
	if c := conditionOf(t, s); !c.LastTransitionTime.Equal(&first) || c.LastTransitionTime.IsZero() {
		t.Errorf("lastTransitionTime became %s, it was %s, and the status is the same", c.LastTransitionTime, first)
	}
	store.Network(true, "", "")
	testwait.Until(t, "the condition", is("False", "TwillIsUp", ""))
	if c := conditionOf(t, s); c.LastTransitionTime.Equal(&first) {
		t.Error("the status changed, and lastTransitionTime did not")
	}
	patch := map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "message": "by a cloud"}}}}
	if err := s.admin.patchStatus(t.Context(), self, types.StrategicMergePatchType, patch); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the condition again", is("False", "TwillIsUp", ""))
	if c := conditionOf(t, s); c.LastHeartbeatTime.Time.Before(began.Truncate(time.Second)) {
		t.Errorf("lastHeartbeatTime is %s", c.LastHeartbeatTime)
	}
	before := s.node(t, self).ResourceVersion
	loop.Sleep(t.Context(), 1100*time.Millisecond)
	must(t, store.writeCondition(t.Context(), networkUnavailable, condition{"False", "TwillIsUp", ""}))
	if s.node(t, self).ResourceVersion != before {
		t.Error("a condition that is there was written")
	}
	got := s.node(t, self).Status.Conditions
	if !slices.ContainsFunc(got, func(c corev1.NodeCondition) bool { return c.Reason == "KubeletReady" }) || len(got) != 2 {
		t.Errorf("the other condition was touched: %+v", got)
	}
}

func conditionOutage(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, Options{SetNetworkUnavailable: true})
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	s.wire.Cut()
	store.Network(true, "TwillIsUp", "")
	store.Event("Normal", "AfterOutage", "said during the outage")
	testwait.Until(t, "word of it", func() bool { return waits.has(taskNetwork, "connection refused") })
	if conditionOf(t, s).Status != "" {
		t.Error("the wire is not cut")
	}
	s.wire.Mend()
	testwait.Until(t, "the condition", func() bool { return conditionOf(t, s).Reason == "TwillIsUp" })
	testwait.Until(t, "the event", func() bool { return len(s.eventsOf(t, self, "AfterOutage")) == 1 })
	testwait.Until(t, "word that it is over", func() bool { return waits.has(taskNetwork + ": ok") })
}

func conditionOff(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	watching(t, store)
	store.Network(true, "TwillIsUp", "")
	store.Event("Normal", "ConditionOff", "the queue was served")
	testwait.Until(t, "the event", func() bool { return len(s.eventsOf(t, self, "ConditionOff")) == 1 })
	if c := conditionOf(t, s); c.Status != "" {
		t.Errorf("got condition %+v", c)
	}
}

// eventsOnce: the manifest's rights let an agent create events, and not count them.
func eventsOnce(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, Options{})
	acquire(t, store, want4)
	asked := asks(store)
	watching(t, store)
	for range 3 {
		store.Event("Warning", "PeerSkipped", "the same")
	}
	store.Event("Warning", "PeerSkipped", "the last") // events are written in order
	testwait.Until(t, "the last event", func() bool {
		return slices.ContainsFunc(s.eventsOf(t, self, "PeerSkipped"), func(e corev1.Event) bool { return e.Message == "the last" })
	})
	if got := s.eventsOf(t, self, "PeerSkipped"); len(got) != 2 || got[0].Count+got[1].Count > 4 {
		t.Errorf("got events %+v, want each message once", got)
	}
	loop.Sleep(t.Context(), 300*time.Millisecond)
	if posts, patches := asked.count("POST whole namespaces/default/events"), asked.count("PATCH metadata namespaces/default/events"); posts != 2 || patches > 2 {
		t.Errorf("the API server was asked to create %d events and to count %d, want 2 and at most 2", posts, patches)
	}
	if waits.has("forbids patch on events") {
		t.Error("that a repetition cannot be counted is reported")
	}
}

// eventsOfPolicies: an event is in its object's namespace, and in default without one.
func eventsOfPolicies(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	watching(t, store)
	for namespace, about := range map[string]subnet.Object{
		"kube-public": {APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: "kube-public", Name: "big", UID: "1-2"},
		"default":     {APIVersion: "policy.networking.k8s.io/v1alpha2", Kind: "ClusterNetworkPolicy", Name: "guard", UID: "3-4"},
	} {
		store.ObjectEvent(about, "Warning", "PolicyLeftOut", "it costs too much")
		testwait.Until(t, "the event of "+about.Name, func() bool { return len(s.eventsOf(t, about.Name, "PolicyLeftOut")) == 1 })
		e := s.eventsOf(t, about.Name, "PolicyLeftOut")[0]
		got := subnet.Object{APIVersion: e.InvolvedObject.APIVersion, Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace,
			Name: e.InvolvedObject.Name, UID: string(e.InvolvedObject.UID)}
		if got != about || e.Namespace != namespace {
			t.Errorf("got an event in %s about %+v, want one in %s about %+v", e.Namespace, got, namespace, about)
		}
	}
}

// eventsCounted: where agents may patch events, repetitions are counted.
func eventsCounted(t *testing.T, s *server) {
	const role = "twill-counts-events"
	rules := []controlplane.Rule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"patch"}}}
	if err := s.api.ApplyRole(t.Context(), role, rules, agentUser); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.api.ApplyRole(background(t), role, rules); err != nil {
			t.Error(err)
		}
	})
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	watching(t, store)
	began := time.Now().Truncate(time.Second)
	for range 3 {
		store.Event("Warning", "PeerSkipped", "the same")
	}
	store.Event("Warning", "PeerSkipped", "another")
	var got []corev1.Event
	testwait.Until(t, "two events", func() bool {
		got = s.eventsOf(t, self, "PeerSkipped")
		return len(got) == 2 && got[0].Count+got[1].Count == 4
	})
	for _, e := range got {
		first := e.FirstTimestamp.Time
		object := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: self, UID: self}
		if (e.Count == 3) != (e.Message == "the same") || e.Type != "Warning" || e.Source != (corev1.EventSource{Component: "twilld", Host: self}) ||
			e.InvolvedObject != object || e.ReportingController != "twilld" || e.ReportingInstance != self ||
			first.Before(began) || first.After(time.Now()) || e.LastTimestamp.Before(&e.FirstTimestamp) {
			t.Errorf("got event %+v", e)
		}
	}
	loop.Sleep(t.Context(), 1100*time.Millisecond) // times have whole seconds
	again := got[1].Message
	store.Event("Warning", "PeerSkipped", again)
	testwait.Until(t, "the repetition with its time", func() bool {
		return slices.ContainsFunc(s.eventsOf(t, self, "PeerSkipped"), func(e corev1.Event) bool {
			return e.Message == again && e.Count == got[1].Count+1 && e.FirstTimestamp.Before(&e.LastTimestamp)
		})
	})
	err := s.admin.rest.Delete().Namespace("default").Resource("events").Name(got[0].Name).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	store.Event("Warning", "PeerSkipped", got[0].Message)
	testwait.Until(t, "the event that the server forgot", func() bool { return len(s.eventsOf(t, self, "PeerSkipped")) == 2 })
	for i := range 60 {
		store.Event("Normal", "Flood", string(rune('a'+i)))
	}
	store.Event("Normal", "Flood", "a")
	loop.Sleep(t.Context(), time.Second)
	if n := len(s.eventsOf(t, self, "Flood")); n == 0 || n > 25 {
		t.Errorf("of a flood of 60 events the API server got %d, want at most 25", n)
	}
}

// rivalRested: whoever writes against the store without end is answered five times at once, and once a second then.
func rivalRested(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	is := func(ip string) func() bool {
		return func() bool { return s.node(t, self).Annotations[note+"public-ip"] == ip }
	}
	at := []time.Time{time.Now()}
	for range 8 {
		s.annotate(t, self, map[string]any{"public-ip": "203.0.113.9"})
		testwait.Until(t, "the repair", is("192.0.2.200"))
		at = append(at, time.Now())
	}
	if gap := at[8].Sub(at[0]); gap < 3*time.Second {
		t.Errorf("eight repairs in %s, want five at once and three in three seconds", gap.Round(time.Millisecond))
	}
}

// eventsFlooded: a peer that is told of again and again leaves room for what happens to this node.
func eventsFlooded(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	for i := range 200 {
		store.Event("Warning", "PeerSkipped", fmt.Sprintf("node evil is left out: %d", i))
	}
	store.Event("Warning", "DataPathBroken", "the first")
	watching(t, store)
	testwait.Until(t, "this node's event", func() bool { return len(s.eventsOf(t, self, "DataPathBroken")) == 1 })
	for i := range 200 {
		store.Event("Warning", "PeerSkipped", fmt.Sprintf("node evil is left out again: %d", i))
		loop.Sleep(t.Context(), time.Millisecond)
	}
	store.Event("Warning", "DataPathBroken", "the second")
	testwait.Until(t, "this node's next event", func() bool { return len(s.eventsOf(t, self, "DataPathBroken")) == 2 })
	if n := len(s.eventsOf(t, self, "PeerSkipped")); n == 0 || n > maxOfReason {
		t.Errorf("of 400 events of one reason the API server got %d, want at most %d", n, maxOfReason)
	}
}
