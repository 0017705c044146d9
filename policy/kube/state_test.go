package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/policy"
)

// read returns a Pod as an event brings it.
func read(t testing.TB, p corev1.Pod) *pod {
	t.Helper()
	raw, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var one pod
	if err := one.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	return &one
}

// summary is a change in a line: "rules +shop/web ~shop/db -shop/old".
func summary(c policy.Change) string {
	var words []string
	for _, p := range c.Pods {
		switch {
		case p.Was == nil:
			words = append(words, "+"+p.Now.Name)
		case p.Now == nil:
			words = append(words, "-"+p.Was.Name)
		default:
			words = append(words, "~"+p.Now.Name)
		}
	}
	slices.Sort(words)
	if c.Rules {
		words = append([]string{"rules"}, words...)
	}
	return strings.Join(words, " ")
}

func named(namespace, name string, spec policy.Spec) *policy.NetworkPolicy {
	p := &policy.NetworkPolicy{Spec: spec}
	p.Namespace, p.Name = namespace, name
	return p
}

// TestState: nothing is told before all kinds were listed, then what changed, and what changed back is not.
func TestState(t *testing.T) {
	s := newState()
	web := func(change func(*corev1.Pod)) *pod {
		p := onePod(1)
		p.Namespace, p.Name = "shop", "web"
		change(&p)
		return read(t, p)
	}
	same := func(*corev1.Pod) {}
	ingress := policy.Spec{PolicyTypes: []policy.Direction{policy.Ingress}}
	for i, step := range []struct {
		do   func()
		want string // empty: nothing
	}{
		{func() { s.replacePods([]*entry{s.shared.entry(web(same))}) }, ""},
		{func() { s.replaceNamespaces(map[string]labels.Set{"shop": {"team": "a"}}) }, ""},
		{func() { s.replacePolicies(nil) }, "rules"},
		{func() {}, ""},
		{func() { s.putPod(web(same)) }, ""},
		{func() { s.putPod(web(func(p *corev1.Pod) { p.Annotations = nil; p.ResourceVersion = "9" })) }, ""},
		{func() { s.putPod(web(func(p *corev1.Pod) { p.Labels["app"] = "x" })) }, "~web"},
		{func() { s.putPod(web(same)); s.putPod(web(func(p *corev1.Pod) { p.Labels["app"] = "x" })) }, ""},
		{func() { s.removePod(web(same).UID); s.putPod(web(same)) }, "~web"},
		{func() { s.putPod(web(func(p *corev1.Pod) { p.UID = "again" })); s.removePod(web(same).UID) }, "+web -web"},
		{func() { s.putPod(web(func(p *corev1.Pod) { p.UID = "again"; p.Status.Phase = corev1.PodSucceeded })) }, "-web"},
		{func() { s.putPod(web(func(p *corev1.Pod) { p.Spec.HostNetwork = true })) }, ""},
		{func() { s.removePod("unknown") }, ""},
		{func() { s.putNamespace("shop", labels.Set{"team": "a"}) }, ""},
		{func() { s.putNamespace("shop", labels.Set{"team": "b"}) }, "rules"},
		{func() { s.putNamespace("new", nil) }, "rules"},
		{func() { s.removeNamespace("new") }, "rules"},
		{func() { s.putPolicy(named("shop", "p", ingress)) }, "rules"},
		{func() { s.putPolicy(named("shop", "p", ingress)) }, ""},
		{func() { s.putPolicy(named("shop", "p", policy.Spec{})) }, "rules"},
		{func() { s.replacePolicies([]*policy.NetworkPolicy{named("shop", "p", policy.Spec{})}) }, ""},
		{func() { s.replaceNamespaces(map[string]labels.Set{"shop": {"team": "b"}}) }, ""},
		{func() { s.removePolicy(named("shop", "p", policy.Spec{})); s.putPod(web(same)) }, "rules +web"},
		{func() { s.replacePods(nil); s.replaceNamespaces(map[string]labels.Set{}) }, "rules -web"},
	} {
		step.do()
		change, ok := s.take()
		if got := summary(change); ok != (step.want != "") || ok && got != step.want {
			t.Errorf("step %d: got %t, %q, want %q", i, ok, got, step.want)
		}
	}
	if len(s.shared.templates) > 0 {
		t.Errorf("%d templates of no pods are left", len(s.shared.templates))
	}
}

// TestClusterState: ClusterNetworkPolicies are waited for if they are followed, and nodes if one is about them.
func TestClusterState(t *testing.T) {
	s := newState()
	s.cluster.followed = true
	one := func(name string, change func(*policy.ClusterSpec)) *policy.ClusterNetworkPolicy {
		p := &policy.ClusterNetworkPolicy{Spec: policy.ClusterSpec{Tier: policy.Admin}}
		p.Name = name
		change(&p.Spec)
		return p
	}
	same := func(*policy.ClusterSpec) {}
	nodes := func(s *policy.ClusterSpec) {
		s.Egress = []policy.ClusterEgressRule{{To: []policy.ClusterEgressPeer{{Networks: []string{"::/0"}}, {Nodes: &metav1.LabelSelector{}}}}}
	}
	node := func(addr string) policy.Node {
		return policy.Node{Name: "n1", Labels: labels.Set{"a": "b"}, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	asked := func() bool {
		select {
		case <-s.cluster.aboutNodes:
			return true
		default:
			return false
		}
	}
	for i, step := range []struct {
		do    func()
		want  string // empty: nothing
		asked bool   // for nodes
	}{
		{func() { s.replacePods(nil); s.replaceNamespaces(map[string]labels.Set{}); s.replacePolicies(nil) }, "", false},
		{func() { s.replaceClusterPolicies(nil) }, "rules", false},
		{func() { s.replaceClusterPolicies(nil) }, "", false},
		{func() { s.putClusterPolicy(one("a", same)) }, "rules", false},
		{func() { s.putClusterPolicy(one("a", same)) }, "", false},
		{func() { s.putClusterPolicy(one("a", nodes)) }, "", true},
		{func() { s.missNodes() }, "rules", true},
		{func() { s.putClusterPolicy(one("b", nodes)) }, "rules", true},
		{func() { s.replaceNodes([]policy.Node{node("192.0.2.1")}) }, "rules", true},
		{func() { s.putNode(node("192.0.2.1")) }, "", true},
		{func() { s.putNode(node("192.0.2.2")) }, "rules", true},
		{func() { s.replaceNodes([]policy.Node{node("192.0.2.2")}) }, "", true},
		{func() { s.removeNode("n1") }, "rules", true},
		{func() { s.removeClusterPolicy(one("a", same)) }, "rules", true},
	} {
		step.do()
		change, ok := s.take()
		if got := summary(change); ok != (step.want != "") || ok && got != step.want || asked() != step.asked {
			t.Errorf("step %d: got %t, %q, want %q; nodes are asked for: %t", i, ok, got, step.want, asked())
		}
		if ok {
			if snap := change.Snapshot(); len(snap.ClusterPolicies) != len(s.cluster.policies.all) || len(snap.Nodes) != len(s.cluster.nodes.all) ||
				snap.NoNodes != (s.cluster.nodes.all == nil) {
				t.Errorf("step %d: the snapshot has %v and %v", i, snap.ClusterPolicies, snap.Nodes)
			}
		}
	}
}

// TestStateRandom: whoever applies every change has what Snapshot says, whatever happens meanwhile, and every pod that is
// told of as changed was told of before as it was.
func TestStateRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 17))
		s := newState()
		s.replacePods(nil)
		s.replaceNamespaces(map[string]labels.Set{})
		s.replacePolicies(nil)
		first, _ := s.take()
		mirror := map[string]*policy.Pod{}
		for range 100 {
			s.randomly(t, r)
			if r.IntN(3) > 0 {
				checkSnapshot(t, seed, first.Snapshot(), mirror)
				continue
			}
			change, _ := s.take()
			for _, p := range change.Pods {
				apply(t, mirror, p)
			}
			checkSnapshot(t, seed, first.Snapshot(), mirror)
		}
		kept := map[*template]int{}
		for _, e := range s.pods {
			kept[e.of]++
		}
		for _, of := range s.shared.templates {
			if kept[of] != of.pods {
				t.Fatalf("seed %d: a template of %d pods counts %d", seed, kept[of], of.pods)
			}
		}
	}
}

func apply(t *testing.T, mirror map[string]*policy.Pod, p policy.PodChange) {
	t.Helper()
	if p.Was != nil {
		if was := mirror[p.Was.UID]; was == nil || !was.Equal(p.Was) {
			t.Fatalf("%s was not told of before as it is said to have been", p.Was)
		}
		delete(mirror, p.Was.UID)
	}
	if p.Now != nil {
		if mirror[p.Now.UID] != nil {
			t.Fatalf("%s was there before", p.Now)
		}
		mirror[p.Now.UID] = p.Now
	}
}

// randomly lets something happen to one of few pods, or to all.
func (s *state) randomly(t *testing.T, r *rand.Rand) {
	draw := func() *pod {
		p := onePod(r.IntN(5))
		p.Labels["app"] = fmt.Sprint(r.IntN(3))
		p.Spec.HostNetwork = r.IntN(10) == 0
		return read(t, p)
	}
	switch r.IntN(10) {
	case 0:
		var all []*entry
		for range r.IntN(5) {
			all = append(all, s.shared.entry(draw()))
		}
		s.replacePods(all)
	case 1, 2:
		s.removePod(draw().UID)
	case 3:
		s.putNamespace("shop", labels.Set{"team": fmt.Sprint(r.IntN(2))})
	default:
		s.putPod(draw())
	}
}

func checkSnapshot(t *testing.T, seed uint64, got policy.Snapshot, want map[string]*policy.Pod) {
	t.Helper()
	all := map[string]*policy.Pod{}
	for _, p := range got.Pods {
		all[p.UID] = p
	}
	if len(got.Pods) != len(all) || !maps.EqualFunc(all, want, (*policy.Pod).Equal) {
		t.Fatalf("seed %d: the snapshot has %v, the changes made %v", seed, got.Pods, want)
	}
}
