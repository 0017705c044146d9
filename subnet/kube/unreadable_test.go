package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// ailing stands before an API server that cannot read one kind of objects: while it is on, lists and watches of them are
// answered with 500. Single objects can be read and written.
type ailing struct {
	next    http.RoundTripper
	kind    string
	forbids bool // it answers with 403, as an API server that starts
	on      atomic.Bool
	refused atomic.Int32
	lists   atomic.Int32 // of all Nodes
}

// ail puts an ailing API server, which is well at first, before a store that is not in use yet.
func ail(s *Store, kind string) *ailing {
	a := &ailing{next: s.api.HTTP.Transport, kind: kind}
	s.api.HTTP.Transport = a
	return a
}

func (a *ailing) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	own := q.Get("fieldSelector") != ""
	if strings.HasSuffix(r.URL.Path, "/nodes") && !own && q.Get("limit") != "1" {
		a.lists.Add(1)
	}
	if !a.on.Load() || r.Method != http.MethodGet || own || !strings.HasSuffix(r.URL.Path, "/"+a.kind) {
		return a.next.RoundTrip(r)
	}
	a.refused.Add(1)
	if a.forbids {
		return answerStatus(r, http.StatusForbidden, metav1.StatusReasonForbidden, "no relationship found"), nil
	}
	return answerStatus(r, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out"), nil
}

// answerStatus is the API server's refusal of a request.
func answerStatus(r *http.Request, code int, reason metav1.StatusReason, message string) *http.Response {
	return &http.Response{
		StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,`+
			`"message":%q,"code":%d}`, reason, message, code))),
	}
}

// fall makes the API server of all stores ail, and waits until each has heard of it.
func fall(t *testing.T, stores []*Store, all []*ailing) {
	t.Helper()
	for i, a := range all {
		a.on.Store(true)
		stores[i].Redial()
	}
	for _, a := range all {
		testwait.Until(t, "a refusal", func() bool { return a.refused.Load() > 0 })
	}
}

// leasesAil: an agent that cannot read Lease objects for a while keeps what it knows, and says so; one that starts then
// does not take that for an empty cluster.
func leasesAil(t *testing.T, s *server) {
	var a *ailing
	all, stores := s.agentsBehind(t, 4, func(i int, s *Store) {
		if i == 3 {
			a = ail(s, "leases")
		}
	}, subnet.StoreLeases)
	fall(t, stores[3:], []*ailing{a})
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, leaseOptions(subnet.StoreLeases))
	later := ail(store, "leases")
	later.on.Store(true)
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "word of it", func() bool {
		return waits.has(taskWatchLeases, "list leases in namespace kube-twill", "etcdserver: request timed out")
	})
	loop.Sleep(t.Context(), time.Second)
	if got := len(w.each()); got > 0 {
		t.Errorf("an agent that starts without Lease objects got %d snapshots, the first with the peers %v", got, names(w.each()[0]))
	}
	a.on.Store(false)
	later.on.Store(false)
	testwait.Until(t, "the new node", func() bool { return len(all[3].last().Peers) == 4 })
	all[3].keeps(t, 3)
	if got := names(w.first(t)); len(got) != 4 {
		t.Errorf("the first snapshot has the peers %v only", got)
	}
	testwait.Until(t, "word that it is over", func() bool { return waits.has(taskWatchLeases + ": ok") })
}

// leasesForbiddenAtFirst: an API server that starts forbids everything for a moment. No agent reads all Nodes for that.
func leasesForbiddenAtFirst(t *testing.T, s *server) {
	var a *ailing
	all, stores := s.agentsBehind(t, 5, func(i int, s *Store) {
		if i == 4 {
			s.patience.blind = time.Minute
			a = ail(s, "leases")
			a.forbids = true
		}
	}, subnet.StoreLeases)
	before := a.lists.Load()
	fall(t, stores[4:], []*ailing{a})
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	joining, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	acquire(t, joining, want4)
	loop.Sleep(t.Context(), time.Second)
	a.on.Store(false)
	testwait.Until(t, "the new node", func() bool { return len(all[4].last().Peers) == 5 })
	all[4].keeps(t, 4)
	if n := a.lists.Load() - before; n > 0 {
		t.Errorf("all Nodes were listed %d times", n)
	}
}

// guardsCannotRead: guards that cannot read Lease objects, or Nodes, do not take what they do not see for nothing: nobody
// is asked to read Nodes.
func guardsCannotRead(t *testing.T, s *server) {
	for _, kind := range []string{"leases", "nodes"} {
		t.Run(kind, func(t *testing.T) {
			s.clear(t)
			s.clearClaims(t)
			var fallen []*ailing
			all, stores := s.agentsBehind(t, 5, func(i int, s *Store) {
				if i < maxGuards {
					fallen = append(fallen, ail(s, kind))
				}
			}, subnet.StoreLeases)
			fall(t, stores, fallen)
			s.createNode(t, testNode(self, "10.244.7.0/24"))
			joining, _ := s.open(t, leaseOptions(subnet.StoreLeases))
			acquire(t, joining, want4)
			left := names(all[3].last())[3]
			s.deleteNode(t, left)
			s.deleteObjects(t, subnet.Lease{Stacks: all[3].last().Peers[3].Stacks})
			testwait.Until(t, "one node instead of another", func() bool {
				got := names(all[3].last())
				return len(got) == 4 && got[3] == self
			})
			loop.Sleep(t.Context(), 600*time.Millisecond) // three times what settles
			for _, a := range fallen {
				a.on.Store(false)
			}
			for _, w := range all[:maxGuards] {
				testwait.Until(t, "guards to see it", func() bool { return len(names(w.last())) == 4 && names(w.last())[3] == self })
			}
			for _, c := range s.claims(t) {
				if node, ok := c.Annotations[note+"read-nodes"]; ok || c.ResourceVersion == "" {
					t.Errorf("%s asked to read Nodes for the sake of %q", c.Name, node)
				}
			}
			if events := s.eventsOf(t, "kubetest-agent-0", "ReadsNodes"); len(events) > 0 {
				t.Errorf("a guard told of %q", events[0].Message)
			}
		})
	}
}

// leaseVerbs gives agents other rights on Lease objects than those that allowLeases gave.
func (s *server) leaseVerbs(t *testing.T, verbs ...string) {
	t.Helper()
	rules := map[string]any{"rules": []any{map[string]any{
		"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": verbs}}}
	body, err := json.Marshal(rules)
	must(t, err)
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + claimSpace + "/roles/twill"
	must(t, s.admin.rest.Patch(types.MergePatchType).AbsPath(path).Body(body).Do(background(t)).Error())
}

// rightsTaken: agents that may not list or watch Lease objects any more keep their peers, and then read Nodes.
func rightsTaken(t *testing.T, s *server) {
	t.Cleanup(func() { s.leaseVerbs(t, "get", "list", "watch", "create", "patch") })
	waits := &reports{}
	all, stores := s.agentsBehind(t, 4, func(i int, s *Store) {
		if i == 3 {
			s.progress.Waiting = waits.add
		}
	}, subnet.StoreLeases)
	for i, verbs := range [][]string{{"get", "list", "create", "patch"}, {"get", "watch", "create", "patch"}} {
		s.leaseVerbs(t, verbs...)
		forbidden := []string{"watch", "list"}[i]
		testwait.Until(t, "word of it", func() bool {
			for _, store := range stores {
				store.Redial() // a watch that goes on is not asked for its rights
			}
			loop.Sleep(t.Context(), 300*time.Millisecond)
			return waits.has(taskWatchLeases, "the API server forbids "+forbidden+" on leases in namespace kube-twill")
		})
		flannel := flannelNode(i + 1)
		s.createNode(t, flannel)
		for k, w := range all {
			testwait.Until(t, fmt.Sprintf("a node of flannel, at agent %d without the right to %s", k, forbidden), func() bool {
				return slices.Contains(names(w.last()), flannel.Name)
			})
			w.keeps(t, 3)
		}
	}
}

// silent accepts requests and never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestListTimesOut: that a list of Lease objects got no answer is told of.
func TestListTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := &reports{}
		o := leaseOptions(subnet.StoreLeases)
		o.APIURL, o.Node, o.Pools, o.Waiting = "http://192.0.2.1:6443", self, []subnet.Pool{pool4}, waits.add
		s, err := New(t.Context(), o)
		must(t, err)
		s.api.HTTP.Transport = silent{}
		if _, err := s.listLeases(t.Context(), s.newLeases(), metav1.ListOptions{}); err == nil {
			t.Fatal("listed")
		}
		if !waits.has(taskWatchLeases, "list leases in namespace kube-twill", "context deadline exceeded") {
			t.Errorf("told %q", waits.text)
		}
	})
}
