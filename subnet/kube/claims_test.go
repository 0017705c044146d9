package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

const claimSpace = "kube-twill"

func TestClaimNames(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.244.7.0/24": "twill-10-244-7-0-24",
		"fd00:1::/64":   "twill-fd00-0001-0000-0000-0000-0000-0000-0000-64",
	} {
		p := netip.MustParsePrefix(subnet)
		if got := claimName(p); got != want {
			t.Errorf("%s: got %s, want %s", p, got, want)
		}
		if back, ok := claimed(want); !ok || back != p {
			t.Errorf("%s is read as %v, %v", want, back, ok)
		}
	}
	for _, name := range []string{"", "twill", "twill-", "twill-x", "twill-10-0-0-0", "twill-10-0-0-1-24", "10-0-0-0-24"} {
		if p, ok := claimed(name); ok {
			t.Errorf("%q is read as %v", name, p)
		}
	}
}

// TestSelfLease runs everything about leases without a controller against one API server.
func TestSelfLease(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	s.post(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": claimSpace}})
	t.Run("without the right", func(t *testing.T) { claimForbidden(t, s) })
	s.allowClaims(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"300 agents and 256 subnets", crowd},
		{"the first subnet, both families, published as ever", firstSubnets},
		{"reservations and foreign podCIDRs", reservations},
		{"subnets of before, of which other nodes still have pods", earlierOfOthers},
		{"a node that comes back keeps its subnet", claimantReturns},
		{"a crash between claim and podCIDR", halfClaimed},
		{"an old claim that is gone when it is deleted", claimCollected},
		{"a claim and a podCIDR that the pools would not give any more", otherPools},
		{"a podCIDR of a controller that was quicker", controllerQuicker},
		{"a Node that is another when its podCIDR is written", nodeReplaced},
		{"other nodes are always quicker", alwaysQuicker},
		{"each call fails once", claimCallsFail},
		{"an annotation that is no address", claimBadAnnotation},
		{"an old claim that another node has when it is deleted", claimLost},
		{"an old claim that another node has after it was deleted", claimStolen},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.clear(t)
			s.clearClaims(t)
			c.run(t, s)
		})
	}
}

// allowClaims gives the agent the rights of deploy/self-lease, and no more.
func (s *server) allowClaims(t *testing.T) {
	t.Helper()
	s.allowLeases(t)
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	type object = map[string]any
	subjects := []object{{"kind": "User", "name": agentUser, "apiGroup": "rbac.authorization.k8s.io"}}
	ref := func(kind string) object {
		return object{"kind": kind, "name": "twill-self-lease", "apiGroup": "rbac.authorization.k8s.io"}
	}
	name := object{"name": "twill-self-lease"}
	s.post(t, rbac+"clusterroles", object{"metadata": name, "rules": []object{{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"patch"}}}})
	s.post(t, rbac+"clusterrolebindings", object{"metadata": name, "roleRef": ref("ClusterRole"), "subjects": subjects})
	space := rbac + "namespaces/" + claimSpace + "/"
	s.post(t, space+"roles", object{"metadata": name, "rules": []object{{"apiGroups": []string{"coordination.k8s.io"},
		"resources": []string{"leases"}, "verbs": []string{"delete"}}}})
	s.post(t, space+"rolebindings", object{"metadata": name, "roleRef": ref("Role"), "subjects": subjects})
}

func (s *server) claims(t *testing.T) []claim {
	t.Helper()
	list, err := s.admin.listClaims(t.Context(), claimSpace)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (s *server) clearClaims(t *testing.T) {
	t.Helper()
	if err := s.admin.leases.Delete().Namespace(claimSpace).Resource("leases").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// reserve makes a claim as an administrator does.
func (s *server) reserve(t *testing.T, subnet string, holder *string) {
	t.Helper()
	c := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: claimName(netip.MustParsePrefix(subnet))},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: holder}}
	if err := s.admin.leases.Post().Namespace(claimSpace).Resource("leases").Body(c).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

func smallPool(min, max string) subnet.Pool {
	return subnet.Pool{Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
		Min: netip.MustParseAddr(min), Max: netip.MustParseAddr(max)}
}

func wantOf(node string) subnet.Lease {
	l := want4
	l.Node = node
	return l
}

func claimForbidden(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	store, _ := s.open(t, Options{ClaimNamespace: claimSpace})
	_, err := store.Acquire(t.Context(), want4)
	wantError(t, err, "the API server forbids list on leases in namespace kube-twill")
}

// crowd starts 300 agents at once on 256 subnets, and frees a subnet then.
func crowd(t *testing.T, s *server) {
	pool := smallPool("10.244.0.0", "10.244.255.0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		leases = map[netip.Prefix]string{}
		full   atomic.Int32
	)
	for i := range 300 {
		s.createNode(t, testNode(fmt.Sprintf("crowd-%03d", i)))
	}
	began := time.Now()
	for i := range 300 {
		group.Go(func() {
			name := fmt.Sprintf("crowd-%03d", i)
			var told sync.Once
			store, err := New(ctx, Options{Kubeconfig: s.kubeconfigOf(agentUser), Node: name, Pools: []subnet.Pool{pool}, ClaimNamespace: claimSpace,
				Waiting: func(_ string, err error) {
					if err != nil && strings.Contains(err.Error(), "all 256 subnets of 10.244.0.0/16 are in use") {
						told.Do(func() { full.Add(1) })
					}
				}})
			if err != nil {
				t.Error(err)
				return
			}
			l, err := store.Acquire(ctx, wantOf(name))
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("%s: %v", name, err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, ok := leases[l.Stacks[0].Subnet]; ok {
				t.Errorf("%s and %s both lease %s", other, name, l.Stacks[0].Subnet)
			}
			leases[l.Stacks[0].Subnet] = name
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(leases)
	}
	testwait.Until(t, "256 leases and 44 errors", func() bool { return count() == 256 && full.Load() == 44 })
	t.Logf("256 leases and 44 errors after %s", time.Since(began).Round(10*time.Millisecond))
	mu.Lock()
	free := netip.MustParsePrefix("10.244.77.0/24")
	gone := leases[free]
	delete(leases, free)
	mu.Unlock()
	s.deleteNode(t, gone) // the garbage collector, which does not run here, deletes the claim then
	for _, c := range s.claims(t) {
		if c.Name == claimName(free) {
			if o := c.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != gone {
				t.Errorf("the claim is owned by %v, want node %s", o, gone)
			}
			if err := s.admin.deleteClaim(t.Context(), claimSpace, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	testwait.Until(t, "the free subnet to be leased", func() bool { return count() == 256 })
	cancel()
	group.Wait()
}

// kubeconfigOf is a file that an earlier call of kubeconfig wrote, or a new one; goroutines must not fail a test.
func (s *server) kubeconfigOf(user string) string { return s.api.KubeconfigFile(user) }

func firstSubnets(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	pools := []subnet.Pool{smallPool("10.244.0.0", "10.244.0.0"), pool6}
	want := want4
	want.Stacks = append(slices.Clone(want4.Stacks), subnet.Stack{Underlay: netip.MustParseAddr("2001:db8::1")})
	store, _ := s.open(t, Options{Pools: pools, ClaimNamespace: claimSpace})
	l := acquire(t, store, want)
	if l.Stacks[0].Subnet.String() != "10.244.0.0/24" || !pool6.Contains(l.Stacks[1].Subnet) {
		t.Errorf("leased %+v", l)
	}
	n := s.node(t, self)
	if got := []string{l.Stacks[0].Subnet.String(), l.Stacks[1].Subnet.String()}; !slices.Equal(n.Spec.PodCIDRs, got) || n.Spec.PodCIDR != got[0] {
		t.Errorf("the node has podCIDRs %v, want %v", n.Spec.PodCIDRs, got)
	}
	if n.Annotations[note+"public-ip"] != "192.0.2.200" || n.Annotations[note+"kube-subnet-manager"] != "true" {
		t.Errorf("got annotations %v", n.Annotations)
	}
	if again := acquire(t, store, want); !again.Equal(l) || len(s.claims(t)) != 2 {
		t.Errorf("a second time: %+v and %d claims", again, len(s.claims(t)))
	}
}

func reservations(t *testing.T, s *server) {
	for _, name := range []string{self, "kubetest-other"} {
		s.createNode(t, testNode(name))
	}
	s.createNode(t, testNode("kubetest-assigned", "10.244.2.0/24"))
	leader := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader-election"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(self)}}
	must(t, s.admin.leases.Post().Namespace(claimSpace).Resource("leases").Body(leader).Do(t.Context()).Error())
	s.reserve(t, "10.244.1.0/24", nil)
	s.reserve(t, "10.244.3.0/24", new("kubetest-other"))
	o := Options{Pools: []subnet.Pool{smallPool("10.244.1.0", "10.244.4.0")}, ClaimNamespace: claimSpace}
	store, _ := s.open(t, o)
	if l := acquire(t, store, want4); l.Stacks[0].Subnet.String() != "10.244.4.0/24" {
		t.Errorf("leased %s, want the only one that is free, 10.244.4.0/24", l.Stacks[0].Subnet)
	}
	o.Node = "kubetest-other"
	other, _ := s.open(t, o)
	if l := acquire(t, other, wantOf(o.Node)); l.Stacks[0].Subnet.String() != "10.244.3.0/24" {
		t.Errorf("leased %s, want the reserved 10.244.3.0/24", l.Stacks[0].Subnet)
	}
	if !slices.ContainsFunc(s.claims(t), func(c claim) bool { return c.Name == leader.Name }) {
		t.Error("a Lease that is no claim was deleted")
	}
}

// earlierOfOthers: what a Node, or a Lease object, names as a subnet of before is not assigned to another node, until it does not.
func earlierOfOthers(t *testing.T, s *server) {
	for _, name := range []string{self, "kubetest-other"} {
		s.createNode(t, testNode(name))
	}
	peer := flannelNode(9)
	peer.Annotations[note+"backend-data"] = `{"VNI":1,"VtepMAC":"0a:00:00:00:00:09","Earlier":["10.244.2.0/24","10.244.4.0/24"]}`
	s.createNode(t, peer)
	s.reserve(t, "10.244.8.0/24", nil)
	s.annotateObject(t, claimName(netip.MustParsePrefix("10.244.8.0/24")), map[string]any{"kube-subnet-manager": "true",
		"backend-type": "vxlan", "backend-data": `{"Earlier":["10.244.3.0/24"]}`, "public-ip": "192.0.2.8"})
	o := Options{Pools: []subnet.Pool{smallPool("10.244.1.0", "10.244.4.0")}, ClaimNamespace: claimSpace}
	store, _ := s.open(t, o)
	if l := acquire(t, store, want4); l.Stacks[0].Subnet.String() != "10.244.1.0/24" {
		t.Errorf("leased %s, want the only one that nobody has pods of, 10.244.1.0/24", l.Stacks[0].Subnet)
	}
	s.annotate(t, peer.Name, map[string]any{"backend-data": `{"VNI":1,"VtepMAC":"0a:00:00:00:00:09","Earlier":["10.244.4.0/24"]}`})
	o.Node = "kubetest-other"
	other, _ := s.open(t, o)
	if l := acquire(t, other, wantOf(o.Node)); l.Stacks[0].Subnet.String() != "10.244.2.0/24" {
		t.Errorf("leased %s, want 10.244.2.0/24, of which nobody has pods any more", l.Stacks[0].Subnet)
	}
}

// claimantReturns deletes a node and creates it again while its agent runs.
func claimantReturns(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	store, _ := s.open(t, Options{Pools: []subnet.Pool{pool4}, ClaimNamespace: claimSpace})
	first := acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the first snapshot", func() bool { return w.last().Local.Equal(first) })
	s.deleteNode(t, self)
	s.createNode(t, testNode(self))
	testwait.Until(t, "the podCIDR of the new node", func() bool {
		return s.node(t, self).Spec.PodCIDR == first.Stacks[0].Subnet.String()
	})
	testwait.Until(t, "its annotations", func() bool { return s.node(t, self).Annotations[note+"public-ip"] != "" })
	all := s.claims(t)
	if len(all) != 1 || all[0].OwnerReferences[0].UID != s.node(t, self).UID {
		t.Errorf("claims are %+v", all)
	}
}

func halfClaimed(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	if err := s.admin.createClaim(t.Context(), claimSpace, &node{ObjectMeta: metav1.ObjectMeta{Name: self, UID: s.node(t, self).UID}}, netip.MustParsePrefix("10.244.9.0/24")); err != nil {
		t.Fatal(err)
	}
	store, _ := s.open(t, Options{ClaimNamespace: claimSpace})
	want := want4
	want.Stacks = slices.Clone(want4.Stacks)
	if _, err := store.publish(t.Context(), want); err != nil || want.Stacks[0].Subnet.IsValid() {
		t.Errorf("published: %v; the caller's lease became %+v", err, want)
	}
	if l := acquire(t, store, want4); l.Stacks[0].Subnet.String() != "10.244.9.0/24" || len(s.claims(t)) != 1 {
		t.Errorf("leased %s with %d claims, want the claimed 10.244.9.0/24", l.Stacks[0].Subnet, len(s.claims(t)))
	}
}

// otherPools: what a node has claimed stays its own when the pools become others, and so does its podCIDR.
func otherPools(t *testing.T, s *server) {
	s.createNode(t, testNode(self))
	held := netip.MustParsePrefix("10.244.9.0/24")
	owner := &node{ObjectMeta: metav1.ObjectMeta{Name: self, UID: s.node(t, self).UID}}
	if err := s.admin.createClaim(t.Context(), claimSpace, owner, held); err != nil {
		t.Fatal(err)
	}
	longer := smallPool("10.244.20.0", "10.244.30.0")
	longer.SubnetLen = 26
	for range 2 { // before and after the podCIDR is written
		store, _ := s.open(t, Options{Pools: []subnet.Pool{longer}, ClaimNamespace: claimSpace})
		if l := acquire(t, store, want4); l.Stacks[0].Subnet != held || len(s.claims(t)) != 1 {
			t.Errorf("leased %s with %d claims, want the claimed %s", l.Stacks[0].Subnet, len(s.claims(t)), held)
		}
	}
}
