package policies

import (
	"encoding/json"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestJudge draws clusters, and compares every connection between their pods, and with addresses outside, with cyclonus.
func TestJudge(t *testing.T) {
	flows, allowed := 0, 0
	for seed := range uint64(400) {
		c := drawn(t, policytest.New(seed))
		for _, f := range policytest.Flows(c.snapshot, policy.TCP, policy.UDP, policy.SCTP) {
			if f.From.Pod == f.To.Pod {
				continue // a pod reaches itself; cyclonus leaves that open
			}
			want := c.theirs.IsTrafficAllowed(c.traffic(f))
			got := c.rules.Judge(f)
			flows++
			if got.Allowed() {
				allowed++
			}
			if got.Ingress.Allowed() != want.Ingress.IsAllowed() || got.Egress.Allowed() != want.Egress.IsAllowed() {
				text, _ := json.MarshalIndent(c.policies, "", " ")
				t.Fatalf("seed %d, %s to %s, %s %d: got %+v, want ingress %v, egress %v\n%s", seed, f.From, f.To, f.Protocol, f.Port, got,
					want.Ingress.IsAllowed(), want.Egress.IsAllowed(), text)
			}
		}
	}
	t.Logf("%d flows, %d of them allowed", flows, allowed)
	if allowed < flows/10 || allowed > flows*9/10 {
		t.Errorf("%d of %d flows are allowed: the policies that are drawn say little", allowed, flows)
	}
}

// cluster is a drawn cluster with its policies, as both judges see it.
type cluster struct {
	policies []*networkingv1.NetworkPolicy
	snapshot policy.Snapshot
	rules    policy.Rules
	theirs   *matcher.Policy
}

func drawn(t *testing.T, w policytest.World) cluster {
	t.Helper()
	c := cluster{snapshot: w.Snapshot(3, 6)}
	rules, skips := policy.New(c.snapshot)
	if len(skips) > 0 {
		t.Fatal(skips)
	}
	c.rules = rules
	for _, p := range c.snapshot.Policies {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var theirs networkingv1.NetworkPolicy
		if err := json.Unmarshal(text, &theirs); err != nil {
			t.Fatal(err)
		}
		if len(theirs.Spec.PolicyTypes) == 0 { // cyclonus wants what the API server sets
			theirs.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(theirs.Spec.Egress) > 0 {
				theirs.Spec.PolicyTypes = append(theirs.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
			}
		}
		c.policies = append(c.policies, &theirs)
	}
	c.theirs = matcher.BuildNetworkPolicies(true, c.policies)
	return c
}

// traffic is a flow in the words of cyclonus.
func (c cluster) traffic(f policy.Flow) *matcher.Traffic {
	end := func(e policy.Endpoint) *matcher.TrafficPeer {
		p := &matcher.TrafficPeer{IP: e.Addr.String()}
		if e.Pod != nil {
			p.Internal = &matcher.InternalPeer{PodLabels: e.Pod.Labels, NamespaceLabels: c.snapshot.Namespaces[e.Pod.Namespace], Namespace: e.Pod.Namespace}
		}
		return p
	}
	t := &matcher.Traffic{Source: end(f.From), Destination: end(f.To), ResolvedPort: int(f.Port), Protocol: corev1.Protocol(f.Protocol)}
	if f.To.Pod != nil {
		for _, p := range f.To.Pod.Ports {
			if p.Number == f.Port && p.Protocol == f.Protocol {
				t.ResolvedPortName = p.Name
			}
		}
	}
	return t
}
