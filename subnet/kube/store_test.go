package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

const self = "kubetest-self"

var (
	pool4 = subnet.Pool{
		Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
		Min: netip.MustParseAddr("10.244.1.0"), Max: netip.MustParseAddr("10.244.255.0"),
	}
	pool6 = subnet.Pool{
		Network: netip.MustParsePrefix("fd00:10:244::/48"), SubnetLen: 64,
		Min: netip.MustParseAddr("fd00:10:244:1::"), Max: netip.MustParseAddr("fd00:10:244:ffff::"),
	}
	want4 = subnet.Lease{Node: self, Backend: "vxlan", Stacks: []subnet.Stack{{
		Underlay: netip.MustParseAddr("192.0.2.200"), Data: json.RawMessage(`{"VNI":1,"VtepMAC":"0a:00:00:00:00:c8"}`),
	}}}
)

// TestStore runs everything that needs an API server against one of them.
func TestStore(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	for _, c := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"late podCIDR", latePodCIDR},
		{"last words", lastWords},
		{"changed podCIDR", changedPodCIDR},
		{"podCIDR outside of the network", foreignPodCIDR},
		{"missing family", missingFamily},
		{"annotations are restored within a second", restored},
		{"a rival is answered at rest", rivalRested},
		{"writes only differences", writesDifferences},
		{"a second family that goes takes its annotations along", familyGoes},
		{"more data than peers keep", muchData},
		{"overwritten addresses", overwritten},
		{"ExternalIP", externalIP},
		{"condition", conditionWritten},
		{"condition survives an outage", conditionOutage},
		{"no condition unless told", conditionOff},
		{"condition of peers", reachedWritten},
		{"events", eventsOnce},
		{"events that are counted", eventsCounted},
		{"events of policies", eventsOfPolicies},
		{"events of a flood", eventsFlooded},
		{"peers of flannel", flannelPeers},
		{"bursts", bursts},
		{"a stranger is read once", strangersOnce},
		{"all is listed again", listedAgain},
		{"many strangers", manyStrangers},
		{"more than a page of nodes", pagedList},
		{"a list that is cut off", cutOffList},
		{"what is held of lists", listsTrimmed},
		{"strangers are read sixteen at a time", strangersAtOnce},
		{"each call of Acquire fails once", acquireFails},
		{"each call of Watch fails once", watchFails},
		{"a wait for a podCIDR is slow, and ends", slowWait},
		{"what the caller changes later", callersLease},
		{"the last lease", lastLease},
		{"redial", redialled},
		{"a peer that comes back with another podCIDR", peerReturns},
		{"managedFields are not believed", managedFieldsAlone},
		{"a busy peer without a podCIDR", noPodCIDR},
		{"hints", hints},
		{"NodeIPs are followed", nodeIPsFollowed},
		{"own prefix", ownPrefix},
		{"node name from the pod", nameFromPod},
		{"node that does not exist", noNode},
		{"forbidden", forbidden},
		{"forbidden patch", forbiddenPatch},
		{"unknown credentials", unauthorized},
		{"rights that come late", lateRights},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.clear(t)
			c.run(t, s)
		})
	}
}

// reports collects the calls of Options.Waiting.
type reports struct {
	mu   sync.Mutex
	text []string
}

func (w *reports) add(task string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.text = append(w.text, task+": ok")
		return
	}
	w.text = append(w.text, task+": "+err.Error())
}

func (w *reports) has(parts ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.text, func(s string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s, part) })
	})
}

func (s *server) open(t *testing.T, o Options) (*Store, *reports) {
	t.Helper()
	w := &reports{}
	o.Waiting = w.add
	if o.Kubeconfig == "" {
		o.Kubeconfig = s.kubeconfig(t, agentUser)
	}
	if o.Node == "" {
		o.Node = self
	}
	if o.Pools == nil {
		o.Pools = []subnet.Pool{pool4}
	}
	store, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a Watch of it ended
		for _, task := range []string{taskWatch, taskRead} {
			if w.has(task, "context canceled") {
				t.Errorf("that the test ended is told of as if it held up %q", task)
			}
		}
	})
	return store, w
}

func acquire(t *testing.T, s *Store, want subnet.Lease) subnet.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// snapshots is what a running Watch gave.
type snapshots struct {
	mu  sync.Mutex
	all []subnet.Snapshot
	at  []time.Time
}

// watching runs Watch until the test ends.
func watching(t *testing.T, s *Store) *snapshots {
	w := &snapshots{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(s subnet.Snapshot) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.all, w.at = append(w.all, s), append(w.at, time.Now())
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("watch ended with %v", err)
			}
		case <-time.After(testwait.Limit):
			t.Error("watch does not end")
		}
	})
	return w
}

func (w *snapshots) each() []subnet.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func (w *snapshots) last() subnet.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return subnet.Snapshot{}
	}
	return w.all[len(w.all)-1]
}

func names(s subnet.Snapshot) []string {
	var n []string
	for _, l := range s.Peers {
		n = append(n, l.Node)
	}
	return n
}

// lastWords: an agent that ends before Watch runs can still say why.
func lastWords(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "192.0.2.0/24"))
	store, _ := s.open(t, Options{})
	_, err := store.Acquire(t.Context(), want4)
	if err == nil {
		t.Fatal("got a lease outside of the network")
	}
	store.Event(warning, "AgentEnds", err.Error())
	store.Flush(t.Context())
	if got := s.eventsOf(t, self, "AgentEnds"); len(got) != 1 || !strings.Contains(got[0].Message, "192.0.2.0/24") {
		t.Errorf("got %+v", got)
	}
}

// muchData: what peers would not keep is not published either.
func muchData(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{})
	want := want4
	want.Stacks = slices.Clone(want4.Stacks)
	want.Stacks[0].Data = json.RawMessage(`"` + strings.Repeat("x", maxData) + `"`)
	_, err := store.Acquire(t.Context(), want)
	wantError(t, err, `node "kubetest-self": the backend's data has more than 4096 bytes: peers would leave it out`)
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("got error %v, want one with %q", err, part)
	}
}

func overwritten(t *testing.T, s *server) {
	n := testNode(self, "10.244.7.0/24")
	n.Annotations = map[string]string{note + "public-ip-overwrite": "203.0.113.1"}
	s.createNode(t, n)
	store, waits := s.open(t, Options{})
	if l := acquire(t, store, want4); l.Stacks[0].Underlay.String() != "203.0.113.1" {
		t.Errorf("got %+v", l)
	}
	w := watching(t, store)
	advertises := func(ip string) func() bool {
		return func() bool {
			l := w.last().Local
			return s.node(t, self).Annotations[note+"public-ip"] == ip && len(l.Stacks) == 1 && l.Stacks[0].Underlay.String() == ip
		}
	}
	testwait.Until(t, "the overwritten address", advertises("203.0.113.1"))
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "203.0.113.2"})
	testwait.Until(t, "another address", advertises("203.0.113.2"))
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "x"})
	testwait.Until(t, "the complaint", func() bool {
		return waits.has("publish the lease", `annotation flannel.alpha.coreos.com/public-ip-overwrite "x" is not an IPv4 address`)
	})
	testwait.Until(t, "its event", func() bool { return len(s.eventsOf(t, self, "LeaseNotPublished")) == 1 })
	if !advertises("203.0.113.2")() {
		t.Error("the last good address is not advertised any more")
	}
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "203.0.113.2"})
	testwait.Until(t, "word that it is mended", func() bool { return waits.has("publish the lease: ok") })
	s.annotate(t, self, map[string]any{"public-ip-overwrite": nil})
	testwait.Until(t, "the own address", advertises("192.0.2.200"))
}

// externalIP: the Node's ExternalIP is advertised where that is asked for, also one that comes later; an annotation beats
// it.
func externalIP(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{ExternalIP: true})
	acquire(t, store, want4)
	w := watching(t, store)
	advertises := func(ip string) func() bool {
		return func() bool {
			l := w.last().Local
			return s.node(t, self).Annotations[note+"public-ip"] == ip && len(l.Stacks) == 1 && l.Stacks[0].Underlay.String() == ip
		}
	}
	testwait.Until(t, "the own address", advertises("192.0.2.200"))
	addresses := func(list string) {
		status := `{"status":{"addresses":[` + list + `]}}`
		if err := s.admin.patchStatus(t.Context(), self, types.MergePatchType, json.RawMessage(status)); err != nil {
			t.Fatal(err)
		}
	}
	const both = `{"type":"InternalIP","address":"192.0.2.10"},{"type":"ExternalIP","address":"2001:db8::7"},` +
		`{"type":"ExternalIP","address":"203.0.113.7"},{"type":"ExternalDNS","address":"203.0.113.9"}`
	addresses(both)
	testwait.Until(t, "the ExternalIP of the family", advertises("203.0.113.7"))
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "203.0.113.1"})
	testwait.Until(t, "the annotation's address", advertises("203.0.113.1"))
	s.annotate(t, self, map[string]any{"public-ip-overwrite": nil})
	testwait.Until(t, "the ExternalIP again", advertises("203.0.113.7"))
	addresses(`{"type":"InternalIP","address":"192.0.2.10"}`)
	testwait.Until(t, "the own address again", advertises("192.0.2.200"))
	addresses(both)
	plain, _ := s.open(t, Options{})
	if l := acquire(t, plain, want4); l.Stacks[0].Underlay.String() != "192.0.2.200" {
		t.Errorf("without being asked for: got %+v", l)
	}
}

func flannelPeers(t *testing.T, s *server) {
	hostgw := flannelNode(2)
	hostgw.Annotations[note+"backend-type"], hostgw.Annotations[note+"backend-data"] = "host-gw", "null"
	stranger := flannelNode(3)
	delete(stranger.Annotations, note+"kube-subnet-manager")
	bad := flannelNode(4)
	bad.Annotations[note+"public-ip"] = "192.0.2"
	pending := flannelNode(5)
	pending.Spec = corev1.NodeSpec{}
	for _, n := range []*corev1.Node{flannelNode(1), hostgw, stranger, bad, pending, testNode(self, "10.244.9.0/24")} {
		s.createNode(t, n)
	}
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	snap := w.last()
	if got := names(snap); !slices.Equal(got, []string{"kubetest-peer-001", "kubetest-peer-002"}) {
		t.Errorf("got peers %v", got)
	}
	if l := snap.Peers[1]; l.Backend != "host-gw" || l.Stacks[0].Data != nil {
		t.Errorf("got host-gw peer %+v", l)
	}
	if len(snap.Skips) != 2 || snap.Skips[0].Node != bad.Name || snap.Skips[1].Node != pending.Name {
		t.Fatalf("got skips %+v", snap.Skips)
	}
	if got := snap.Skips[0].Detail; got != `public-ip "192.0.2" is not an IPv4 address` {
		t.Errorf("got reason %q", got)
	}
	s.annotate(t, "kubetest-peer-003", map[string]any{"kube-subnet-manager": "true"})
	s.annotate(t, "kubetest-peer-001", map[string]any{"kube-subnet-manager": nil})
	testwait.Until(t, "what changed", func() bool {
		return slices.Equal(names(w.last()), []string{"kubetest-peer-002", "kubetest-peer-003"})
	})
}

// bursts checks that changes which come together are one snapshot.
func bursts(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	var group sync.WaitGroup
	for k := range 10 {
		group.Go(func() {
			for i := range 10 {
				s.createNode(t, flannelNode(1+10*k+i))
			}
		})
	}
	group.Wait()
	testwait.Until(t, "all peers", func() bool { return len(w.last().Peers) == 100 })
	for i := 1; i < len(w.at); i++ {
		if gap := w.at[i].Sub(w.at[i-1]); gap < burst {
			t.Errorf("snapshot %d came %s after the one before", i, gap)
		}
	}
	count := len(w.each())
	heartbeat := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"ok"}]}}`
	err := s.admin.patchStatus(t.Context(), "kubetest-peer-050", types.StrategicMergePatchType, json.RawMessage(heartbeat))
	if err != nil {
		t.Fatal(err)
	}
	must(t, s.admin.patchStatus(t.Context(), self, types.StrategicMergePatchType, json.RawMessage(heartbeat)))
	loop.Sleep(t.Context(), 300*time.Millisecond)
	if n := len(w.each()); n != count {
		t.Errorf("status updates of a peer and the node itself gave %d snapshots", n-count)
	}
}

func hints(t *testing.T, s *server) {
	n := testNode(self, "10.244.7.0/24")
	n.Annotations = map[string]string{note + "node-public-ip": "192.0.2.9", note + "node-public-ipv6": "2001:db8::9"}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: self}, {Type: corev1.NodeInternalIP, Address: "192.0.2.10"},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"},
	}
	s.createNode(t, n)
	store, _ := s.open(t, Options{Pools: []subnet.Pool{pool4, pool6}})
	h, err := store.Hints(t.Context())
	choose := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
	internal := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
	if err != nil || !slices.Equal(h.Choose, choose) || !slices.Equal(h.Internal, internal) {
		t.Errorf("got %+v %v", h, err)
	}
	if all, err := store.NodeIPs(t.Context()); err != nil || !slices.Equal(all, append(choose, internal...)) {
		t.Errorf("of all addresses, those to choose first: %v %v", all, err)
	}
	s.annotate(t, self, map[string]any{"node-public-ip": "here"})
	_, err = store.Hints(t.Context())
	wantError(t, err, `annotation flannel.alpha.coreos.com/node-public-ip "here" is not an IPv4 address`)
}

// nodeIPsFollowed changes the InternalIPs of a node whose agent runs.
func nodeIPsFollowed(t *testing.T, s *server) {
	n := testNode(self, "10.244.7.0/24")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}
	s.createNode(t, n)
	store, _ := s.open(t, Options{})
	acquire(t, store, want4)
	w := watching(t, store)
	is := func(addrs ...string) func() bool {
		return func() bool { return fmt.Sprint(w.last().NodeIPs) == fmt.Sprint(addrs) }
	}
	testwait.Until(t, "the first InternalIP", is("192.0.2.10"))
	status := `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.11"}]}}`
	if err := s.admin.patchStatus(t.Context(), self, types.MergePatchType, json.RawMessage(status)); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the new InternalIP", is("192.0.2.11"))
	s.annotate(t, self, map[string]any{"node-public-ip": "192.0.2.12"})
	testwait.Until(t, "the chosen address first", is("192.0.2.12", "192.0.2.11"))
	s.annotate(t, self, map[string]any{"node-public-ip": "here"})
	testwait.Until(t, "no addresses", is())
}

func nameFromPod(t *testing.T, s *server) {
	s.post(t, "/api/v1/namespaces/default/serviceaccounts", map[string]any{"metadata": map[string]any{"name": "default"}})
	s.post(t, "/api/v1/namespaces/default/pods", map[string]any{
		"metadata": map[string]any{"name": "twilld-abc"},
		"spec":     map[string]any{"nodeName": self, "containers": []any{map[string]any{"name": "c", "image": "none"}}},
	})
	s.post(t, "/api/v1/namespaces/default/pods", map[string]any{
		"metadata": map[string]any{"name": "twilld-pending"},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}},
	})
	t.Cleanup(func() {
		zero := int64(0)
		for _, name := range []string{"twilld-abc", "twilld-pending"} {
			err := s.admin.rest.Delete().Namespace("default").Resource("pods").Name(name).
				Body(&metav1.DeleteOptions{GracePeriodSeconds: &zero}).Do(context.Background()).Error()
			if err != nil {
				t.Error(err)
			}
		}
	})
	o := Options{Kubeconfig: s.api.KubeconfigFile(controlplane.Admin), Pools: []subnet.Pool{pool4}}
	t.Setenv("NODE_NAME", "")
	t.Setenv("POD_NAME", "twilld-abc")
	_, err := New(t.Context(), o)
	wantError(t, err, "no node name: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
	t.Setenv("POD_NAMESPACE", "default")
	store, err := New(t.Context(), o)
	if err != nil || store.Node() != self {
		t.Errorf("got %v, %v", store, err)
	}
	t.Setenv("POD_NAME", "twilld-pending")
	_, err = New(t.Context(), o)
	wantError(t, err, "pod default/twilld-pending has no spec.nodeName")
	t.Setenv("POD_NAME", "other")
	_, err = New(t.Context(), o)
	wantError(t, err, "pod default/other does not exist")
	o.Kubeconfig = s.kubeconfig(t, agentUser)
	_, err = New(t.Context(), o)
	wantError(t, err, "the API server forbids get on pods")
	t.Setenv("NODE_NAME", "named")
	if store, err = New(t.Context(), o); err != nil || store.Node() != "named" {
		t.Errorf("got %v, %v", store, err)
	}
}

func noNode(t *testing.T, s *server) {
	store, _ := s.open(t, Options{})
	_, err := store.Acquire(t.Context(), want4)
	wantError(t, err, `node "kubetest-self" does not exist: NODE_NAME, or the pod that POD_NAME and POD_NAMESPACE name`)
}
