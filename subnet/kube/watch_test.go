package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// asked counts what a store asks for.
type asked struct {
	next   http.RoundTripper
	before func(*http.Request) // is called before each request goes out; may be nil
	after  func(*http.Request) // is called after each answer; may be nil
	fail   func(int) bool      // reports whether that request, counted from 0, gets no answer; may be nil

	mu        sync.Mutex
	calls     []string
	unbounded string // a call that may take too long
}

// asks makes a store count its requests.
func asks(s *Store) *asked {
	a := &asked{next: s.api.HTTP.Transport}
	s.api.HTTP.Transport = a
	return a
}

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	what := "whole"
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		what = "metadata"
	}
	a.mu.Lock()
	failed := a.fail != nil && a.fail(len(a.calls))
	a.calls = append(a.calls, r.Method+" "+what+" "+strings.TrimPrefix(r.URL.Path, "/api/v1/"))
	before, after := a.before, a.after
	a.bound(r)
	a.mu.Unlock()
	if failed {
		return nil, errors.New("cut off by the test")
	}
	if before != nil {
		before(r)
	}
	resp, err := a.next.RoundTrip(r)
	if after != nil {
		after(r)
	}
	return resp, err
}

// bound notes a call that may take longer than it should: ten seconds, a minute for a list. A watch ends by itself.
func (a *asked) bound(r *http.Request) {
	most, q := 10*time.Second, r.URL.Query()
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/nodes") && q.Get("limit") != "1" {
		most = time.Minute
	}
	if end, ok := r.Context().Deadline(); q.Get("watch") == "" && (!ok || time.Until(end) > most) {
		a.unbounded = fmt.Sprintf("%s %s until %s", r.Method, r.URL, end)
	}
}

func (a *asked) wantBounded(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unbounded != "" {
		t.Errorf("a call may take long: %s", a.unbounded)
	}
}

// said returns the calls so far.
func (a *asked) said() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// count returns how many calls begin with what.
func (a *asked) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.calls {
		if strings.HasPrefix(c, what) {
			n++
		}
	}
	return n
}

// whole are the Nodes that were read in full, once for each time, "nodes" for all of them.
func (a *asked) whole() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for _, c := range a.calls {
		if name, ok := strings.CutPrefix(c, "GET whole "); ok {
			got = append(got, strings.TrimPrefix(name, "nodes/"))
		}
	}
	slices.Sort(got)
	return got
}

func (a *asked) wantWhole(t *testing.T, want ...string) {
	t.Helper()
	if got := a.whole(); !slices.Equal(got, want) {
		t.Errorf("read in full %v, want %v", got, want)
	}
}

// reader opens a store that counts, without a lease of its own, gives it what an earlier one knew, and watches.
func (s *server) reader(t *testing.T, earlier json.RawMessage) (*snapshots, *asked, *Store) {
	t.Helper()
	if !s.hasNode(t, self) {
		s.createNode(t, testNode(self, "10.244.200.0/24"))
	}
	store, _ := s.open(t, Options{})
	store.Restore(earlier)
	a := asks(store)
	return watching(t, store), a, store
}

// leased is what a snapshot says: "peer-001 10.244.1.0/24", in order.
func leased(s subnet.Snapshot) string {
	var all []string
	for _, l := range s.Peers {
		all = append(all, strings.TrimPrefix(l.Node, "kubetest-")+" "+l.Stacks[0].Subnet.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (w *snapshots) leasing(want string) func() bool {
	return func() bool { return leased(w.last()) == want }
}

// strangersOnce: all nodes are listed whole once; a node that joins is read once, whatever it changes later, and a
// restarted agent reads none but its own.
func strangersOnce(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	w, asked, store := s.reader(t, nil)
	testwait.Until(t, "a peer", w.leasing("peer-001 10.244.1.0/24"))
	late := flannelNode(2) // its podCIDR comes from kube-controller-manager
	late.Spec.PodCIDR, late.Spec.PodCIDRs = "", nil
	late.Annotations = nil
	s.createNode(t, late)
	s.patchSpec(t, late.Name, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`)
	s.annotate(t, late.Name, map[string]any{"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "192.0.2.2"})
	s.createNode(t, flannelNode(3))
	all := "peer-001 10.244.1.0/24, peer-002 10.244.2.0/24, peer-003 10.244.3.0/24"
	testwait.Until(t, "three peers", w.leasing(all))
	for _, name := range []string{"kubetest-peer-001", "kubetest-peer-003"} {
		s.annotate(t, name, map[string]any{"public-ip": "192.0.2.99"})
	}
	testwait.Until(t, "a change", func() bool { return w.last().Peers[2].Stacks[0].Underlay.String() == "192.0.2.99" })
	asked.wantWhole(t, "kubetest-peer-002", "kubetest-peer-003", self, "nodes")
	if n := asked.count("GET metadata nodes"); n > 10 {
		t.Errorf("the metadata of all was asked for %d times, want once for each watch", n)
	}
	asked.wantBounded(t)
	again, asked, _ := s.reader(t, store.Checkpoint())
	testwait.Until(t, "the three peers", again.leasing(all))
	asked.wantWhole(t, self)
}

// manyStrangers: after an outage in which many nodes joined, one list is better than as many reads.
func manyStrangers(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	w, _, store := s.reader(t, nil)
	testwait.Until(t, "the first peer", w.leasing("peer-001 10.244.1.0/24"))
	before := store.Checkpoint()
	for i := range fullListThreshold + 1 {
		s.createNode(t, flannelNode(i+2))
	}
	w, asked, _ := s.reader(t, before)
	testwait.Until(t, "all peers", func() bool { return len(w.last().Peers) == fullListThreshold+2 })
	asked.wantWhole(t, self, "nodes")
}

// pagedList: more nodes than fit on a page of the list.
func pagedList(t *testing.T, s *server) {
	const most = 501
	for i := range most {
		n := testNode(fmt.Sprintf("kubetest-page-%03d", i), fmt.Sprintf("10.244.%d.%d/25", i/2, i%2*128))
		n.Annotations = flannelNode(1).Annotations
		s.createNode(t, n)
	}
	w, asked, _ := s.reader(t, nil)
	testwait.Until(t, "all peers", func() bool { return len(w.last().Peers) == most })
	asked.wantWhole(t, self, "nodes", "nodes")
}

// cutOffList: a list of which the second page does not come is no list, although this node's own Node was on the first.
func cutOffList(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	for i := range 501 {
		s.createNode(t, testNode(fmt.Sprintf("kubetest-zpage-%03d", i)))
	}
	store, _ := s.open(t, Options{})
	asked, c := asks(store), store.newNodes()
	asked.fail = func(n int) bool { return n == 1 }
	if page, err := store.list(t.Context(), c, metav1.ListOptions{}); err == nil {
		t.Errorf("a list of %d nodes without its second page is no error", len(page.Items))
	}
	if _, ok := c.ownRecord(); ok {
		t.Error("the own Node was read for it")
	}
}

// listsTrimmed: of a list only what matters is held, and the revision that it was made at.
func listsTrimmed(t *testing.T, s *server) {
	n := flannelNode(1)
	n.Labels = map[string]string{"large": "label"}
	s.createNode(t, n)
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	s.createNode(t, testNode("kubetest-z")) // after the own Node
	store, _ := s.open(t, Options{})
	c := store.newNodes()
	for _, kind := range []string{"whole", "of metadata"} {
		page, err := store.list(t.Context(), c, metav1.ListOptions{ResourceVersion: "0"})
		must(t, err)
		if len(page.Items) != 3 || page.Items[0].Labels != nil || page.Items[0].ManagedFields != nil || page.ResourceVersion == "" {
			t.Errorf("a list %s at %q holds %+v", kind, page.ResourceVersion, page.Items)
		}
		if _, ok := c.ownRecord(); !ok {
			t.Errorf("after a list %s the own Node is not known", kind)
		}
		if until := time.Until(c.relist); until < time.Hour-time.Minute || until > 90*time.Minute {
			t.Errorf("all is listed again in %s, want an hour to one and a half", until)
		}
		c.entries = map[string]*entry{}
		store.podCIDRs.rewound(page.ResourceVersion)
	}
}

// strangersAtOnce: 64 Nodes are read one by one, 16 at a time, and one that is deleted meanwhile is none of them.
func strangersAtOnce(t *testing.T, s *server) {
	s.createNode(t, flannelNode(200))
	w, _, store := s.reader(t, nil)
	testwait.Until(t, "the first peer", w.leasing("peer-200 10.244.200.0/24"))
	before := store.Checkpoint()
	for i := range 64 {
		s.createNode(t, flannelNode(i+1))
	}
	again, _ := s.open(t, Options{})
	again.Restore(before)
	asked := asks(again)
	var now, most atomic.Int32
	var gone sync.Once
	asked.before = func(r *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		if strings.HasSuffix(r.URL.Path, "/kubetest-peer-064") {
			gone.Do(func() { s.deleteNode(t, "kubetest-peer-064") })
		}
		loop.Sleep(t.Context(), 20*time.Millisecond)
	}
	asked.after = func(*http.Request) { now.Add(-1) }
	page, err := again.list(t.Context(), again.newNodes(), metav1.ListOptions{})
	must(t, err)
	if reads := asked.whole(); len(page.Items) != 66 || len(reads) != 65 || slices.Contains(reads, "nodes") {
		t.Errorf("%d nodes, of which %v are read", len(page.Items), reads)
	}
	if n := most.Load(); n < 8 || n > 16 {
		t.Errorf("%d are read at the same time, want 16", n)
	}
}

func peerReturns(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	w, asked, store := s.reader(t, nil)
	testwait.Until(t, "the peer", w.leasing("peer-001 10.244.1.0/24"))
	before := store.Checkpoint()
	s.deleteNode(t, "kubetest-peer-001")
	again := flannelNode(1)
	again.Spec.PodCIDR, again.Spec.PodCIDRs = "10.244.9.0/24", []string{"10.244.9.0/24"}
	s.createNode(t, again)
	testwait.Until(t, "its new subnet", w.leasing("peer-001 10.244.9.0/24"))
	asked.wantWhole(t, "kubetest-peer-001", self, "nodes")
	w, asked, _ = s.reader(t, before) // the agent was away meanwhile
	testwait.Until(t, "its new subnet", w.leasing("peer-001 10.244.9.0/24"))
	asked.wantWhole(t, "kubetest-peer-001", self)
	if text := string(store.Checkpoint()); strings.Contains(text, "10.244.1.0/24") {
		t.Errorf("the node that is gone is remembered: %s", text)
	}
}

// managedFieldsAlone: what a node's metadata says of its podCIDR is nobody's business.
func managedFieldsAlone(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, flannelNode(2))
	entries := `[{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",` +
		`"fieldsV1":{"f:spec":{"f:podCIDRs":{".":{},"v:\"10.244.2.0/24\"":{}}}}}]`
	patch := json.RawMessage(`{"metadata":{"managedFields":` + entries + `}}`)
	must(t, s.admin.patch(t.Context(), s.admin.Metadata.Resource(nodesResource), "kubetest-peer-001", types.MergePatchType, patch))
	w, _, _ := s.reader(t, nil)
	testwait.Until(t, "the subnets of the specs", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
}

// noPodCIDR: a peer without a podCIDR, which writes to its Node all the time, is read now and then only, and others'
// changes come meanwhile.
func noPodCIDR(t *testing.T, s *server) {
	w, asked, _ := s.reader(t, nil)
	testwait.Until(t, "a snapshot", func() bool { return len(w.each()) > 0 })
	busy := flannelNode(1)
	busy.Spec.PodCIDR, busy.Spec.PodCIDRs = "", nil
	s.createNode(t, busy)
	for i := range 100 {
		s.annotate(t, busy.Name, map[string]any{"public-ip": fmt.Sprintf("192.0.2.%d", i)})
	}
	s.createNode(t, flannelNode(2))
	testwait.Until(t, "another peer", w.leasing("peer-002 10.244.2.0/24"))
	reads := 0
	for _, name := range asked.whole() {
		if name == busy.Name {
			reads++
		}
	}
	if reads == 0 || reads > 5 {
		t.Errorf("the node without a podCIDR was read %d times for 100 changes, want a few", reads)
	}
	s.patchSpec(t, busy.Name, `{"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]}}`)
	testwait.Until(t, "its podCIDR", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
}

// listedAgain: now and then all is listed again, which finds what no watch reported. The API server has it in memory.
func listedAgain(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	s.createNode(t, flannelNode(1))
	store, _ := s.open(t, Options{})
	store.relistEvery = 2 // nanoseconds
	asked, c := asks(store), store.newNodes()
	var mu sync.Mutex
	var from []string
	asked.before = func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if q := r.URL.Query(); r.URL.Path == "/api/v1/nodes" && q.Get("watch") == "" && q.Get("limit") != "1" {
			from = append(from, q.Get("resourceVersion"))
		}
	}
	names := func() string {
		leases, _, _ := c.peers()
		return leased(subnet.Snapshot{Peers: leases})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); store.reflect(ctx, c) }()
	defer func() { cancel(); <-done }()
	testwait.Until(t, "a peer", func() bool { return names() == "peer-001 10.244.1.0/24" })
	missed := record{name: "kubetest-peer-002", uid: "2", managed: "true", podCIDRs: "10.244.2.0/24"}
	missed.v4.public = "192.0.2.2"
	c.mu.Lock()
	c.put(entry{record: missed})
	c.mu.Unlock()
	if got := names(); !strings.Contains(got, "peer-002") {
		t.Fatalf("a node that left and was missed is not there: %s", got)
	}
	s.wire.Cut()
	s.wire.Mend()
	testwait.Until(t, "the truth", func() bool { return names() == "peer-001 10.244.1.0/24" })
	mu.Lock()
	defer mu.Unlock()
	if len(from) < 2 || from[0] != "" || from[1] == "" || from[1] == "0" {
		t.Errorf("listed from the versions %q, want none at first and then one that is known", from)
	}
}
