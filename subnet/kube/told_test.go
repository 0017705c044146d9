package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/subnet"
)

// TestReadFields reads records of fields as API servers write them, and as nobody does.
func TestReadFields(t *testing.T) {
	for fields, want := range map[string]string{
		`{"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"10.244.1.0/24\"":{}}}}`:                            "10.244.1.0/24",
		`{"f:spec":{"f:podCIDRs":{"v:\"10.244.1.0/24\"":{},"v:\"fd00:10:244:1::/64\"":{}}}}`:                    "10.244.1.0/24,fd00:10:244:1::/64",
		`{"f:metadata":{"f:labels":{"f:podCIDRs":{}}},"f:spec":{"f:podCIDRs":{".":{},"v:\"10.0.0.0/24\"":{}}}}`: "10.0.0.0/24",
		`{"f:spec":{"f:podCIDRs":{".":{},"v:\"10.244.1.0`:                                                       "",
		`{"f:metadata":{"f:annotations":{"f:x":{}}}}`:                                                           "",
		``: "",
	} {
		n := &node{}
		n.readFields([]byte(fields))
		if n.told != want {
			t.Errorf("%s: got %q, want %q", fields, n.told, want)
		}
	}
	twice := &node{}
	for range 2 {
		twice.readFields([]byte(`{"f:spec":{"f:podCIDRs":{".":{},"v:\"10.244.1.0/24\"":{}}}}`))
	}
	if twice.told != "10.244.1.0/24" {
		t.Errorf("two writers of one podCIDR: got %q", twice.told)
	}
}

func TestPlausible(t *testing.T) {
	a := newAnnotations(note, []subnet.Pool{pool4})
	for told, want := range map[string]bool{
		"10.244.1.0/24":                    true,
		"10.244.1.0/24,fd00:10:244:1::/64": true,
		"fd00:10:244:1::/64,10.244.1.0/24": true,
		"":                                 false,
		"10.244.1.0/24,10.244.2.0/24":      false,
		"10.244.1.7/24":                    false,
		"10.9.1.0/24":                      false,
		"10.0.0.0/8":                       false,
		"0.0.0.0/0":                        false,
		"10.244.1.0/24,":                   false,
		"x":                                false,
	} {
		if got := a.plausible(&node{told: told}); got != want {
			t.Errorf("%q: got %v", told, got)
		}
	}
}

func TestDisputed(t *testing.T) {
	for _, c := range []struct {
		what        string
		told, known map[string]string
		want        string
	}{
		{"nothing in common", map[string]string{"a": "10.0.1.0/24,fd00:1::/64", "b": "10.0.2.0/24,fd00:2::/64"}, map[string]string{"c": "10.0.3.0/24"}, ""},
		{"two new ones", map[string]string{"a": "10.0.1.0/24", "b": "10.0.1.0/24"}, nil, "a b"},
		{"the second family", map[string]string{"a": "10.0.1.0/24,fd00:1::/64", "b": "10.0.2.0/24,fd00:1::/64"}, nil, "a b"},
		{"a known one", map[string]string{"a": "10.0.1.0/24"}, map[string]string{"k": "10.0.1.0/24", "l": "10.0.2.0/24"}, "a k"},
		{"a new one around", map[string]string{"a": "10.0.0.0/16", "b": "10.0.1.0/24"}, map[string]string{"k": "10.0.2.0/24"}, "a b k"},
		{"a known one around", map[string]string{"a": "10.0.1.0/24", "b": "10.1.1.0/24"}, map[string]string{"k": "10.0.0.0/16"}, "a k"},
		{"what cannot be read", map[string]string{"a": "10.0.1.0/24"}, map[string]string{"k": "", "l": "x,"}, ""},
	} {
		got := strings.Join(slices.Sorted(maps.Keys(disputed(c.told, maps.All(c.known)))), " ")
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}

// FuzzReadFields: whatever comes, what is told is either not plausible or podCIDRs in the network.
func FuzzReadFields(f *testing.F) {
	f.Add([]byte(`{"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"10.244.1.0/24\"":{},"v:\"fd00:10:244:1::/64\"":{}}}}`))
	f.Add([]byte(`"f:podCIDRs":{,"v:\"`))
	a := newAnnotations(note, []subnet.Pool{pool4, pool6})
	f.Fuzz(func(t *testing.T, fields []byte) {
		n := &node{}
		n.readFields(fields)
		if !a.plausible(n) {
			return
		}
		for _, is4 := range []bool{true, false} {
			n.podCIDRs = n.told
			if p, err := n.podCIDR(is4); err != nil || p.IsValid() && !pool4.Network.Overlaps(p) && !pool6.Network.Overlaps(p) {
				t.Errorf("%q gives %v %v", n.told, p, err)
			}
		}
	})
}

// asked counts what a store asks for.
type asked struct {
	next http.RoundTripper

	mu    sync.Mutex
	calls []string
}

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	what := "whole"
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		what = "metadata"
	}
	a.mu.Lock()
	a.calls = append(a.calls, r.Method+" "+what+" "+strings.TrimPrefix(r.URL.Path, "/api/v1/"))
	a.mu.Unlock()
	return a.next.RoundTrip(r)
}

// whole are the Nodes that were read in full, "nodes" for all of them.
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
	return slices.Compact(got)
}

// reader opens a store that counts, without a lease of its own, and watches.
func (s *server) reader(t *testing.T) (*snapshots, *asked) {
	t.Helper()
	s.createNode(t, testNode(self, "10.244.200.0/24"))
	store, _ := s.open(t, Options{})
	a := &asked{next: store.api.http.Transport}
	store.api.http.Transport = a
	return watching(t, store), a
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

func (a *asked) wantWhole(t *testing.T, want ...string) {
	t.Helper()
	if got := a.whole(); !slices.Equal(got, want) {
		t.Errorf("read in full %v, want %v", got, want)
	}
}

// metadataOnly: neither the nodes that are there nor those that join are read in full.
func metadataOnly(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	late := flannelNode(2) // its podCIDR comes from kube-controller-manager
	late.Spec.PodCIDR, late.Spec.PodCIDRs = "", nil
	late.Annotations, late.Labels = nil, map[string]string{"kubernetes.io/os": "linux"} // of an empty object no record is kept
	s.createNode(t, late)
	s.patchSpec(t, late.Name, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`)
	s.annotate(t, late.Name, map[string]any{"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "192.0.2.2"})
	w, asked := s.reader(t)
	eventually(t, 5*time.Second, "two peers", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
	s.createNode(t, flannelNode(3))
	eventually(t, 5*time.Second, "a third", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24, peer-003 10.244.3.0/24"))
	asked.wantWhole(t, self)
}

// forget takes the record of who wrote what from a node, as whoever may update it can.
func (s *server) forget(t *testing.T, node string) { s.manage(t, node, `[{}]`) }

func (s *server) manage(t *testing.T, node, entries string) {
	t.Helper()
	patch := json.RawMessage(`{"metadata":{"managedFields":` + entries + `}}`)
	// Through nodes/status, for which agents have a right, it would change nothing.
	r := call{method: http.MethodPatch, path: nodePath(node), kind: mergePatch, body: patch}
	if err := s.admin.do(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
}

// forge has a node's metadata tell another podCIDR.
func (s *server) forge(t *testing.T, node, cidr string) {
	t.Helper()
	s.manage(t, node, fmt.Sprintf(`[{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:podCIDRs":{".":{},"v:\"%s\"":{}}}}}]`, cidr))
	n := s.node(t, node)
	if len(n.ManagedFields) == 0 || !strings.Contains(n.ManagedFields[0].FieldsV1.GetRawString(), cidr) {
		t.Fatalf("the API server did not take the forged record, but has %v", n.ManagedFields)
	}
}

func untoldPeers(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, flannelNode(2))
	s.forget(t, "kubetest-peer-002")
	w, asked := s.reader(t)
	eventually(t, 5*time.Second, "both peers", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
	asked.wantWhole(t, "kubetest-peer-002", self)
}

func manyUntold(t *testing.T, s *server) {
	for i := range few + 1 {
		s.createNode(t, flannelNode(i+1))
		s.forget(t, fmt.Sprintf("kubetest-peer-%03d", i+1))
	}
	w, asked := s.reader(t)
	eventually(t, 5*time.Second, "all peers", func() bool { return len(w.last().Peers) == few+1 })
	asked.wantWhole(t, "nodes")
	for _, l := range w.last().Peers {
		if !strings.HasSuffix(l.Stacks[0].Subnet.String(), ".0/24") || !netip.MustParsePrefix("10.244.0.0/16").Overlaps(l.Stacks[0].Subnet) {
			t.Errorf("got %+v", l)
		}
	}
}

func peerReturns(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	w, asked := s.reader(t)
	eventually(t, 5*time.Second, "the peer", w.leasing("peer-001 10.244.1.0/24"))
	s.deleteNode(t, "kubetest-peer-001")
	again := flannelNode(1)
	again.Spec.PodCIDR, again.Spec.PodCIDRs = "10.244.9.0/24", []string{"10.244.9.0/24"}
	s.createNode(t, again)
	eventually(t, 5*time.Second, "its new subnet", w.leasing("peer-001 10.244.9.0/24"))
	asked.wantWhole(t, self)
}

// forged: of two nodes whose metadata claims one subnet, the one whose spec has it gets it.
func forged(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, flannelNode(2))
	s.forge(t, "kubetest-peer-001", "10.244.2.0/24")
	w, asked := s.reader(t)
	eventually(t, 5*time.Second, "the subnets of the specs", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24"))
	asked.wantWhole(t, "kubetest-peer-001", "kubetest-peer-002", self)
}

// forgedFirst: a node claims a subnet that is nobody's yet; it loses it to the node that gets it.
func forgedFirst(t *testing.T, s *server) {
	s.createNode(t, flannelNode(1))
	s.createNode(t, flannelNode(3))
	s.forge(t, "kubetest-peer-001", "10.244.2.0/24")
	w, _ := s.reader(t)
	eventually(t, 5*time.Second, "the forged subnet", w.leasing("peer-001 10.244.2.0/24, peer-003 10.244.3.0/24"))
	s.createNode(t, flannelNode(2))
	eventually(t, 5*time.Second, "the subnets of the specs", w.leasing("peer-001 10.244.1.0/24, peer-002 10.244.2.0/24, peer-003 10.244.3.0/24"))
	for _, snap := range w.each() {
		if text := leased(snap); strings.Contains(text, "peer-001 10.244.2.0/24") && strings.Contains(text, "peer-002") {
			t.Errorf("a snapshot has two holders of a subnet: %s", text)
		}
	}
}
