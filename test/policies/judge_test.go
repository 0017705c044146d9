package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	"k8s.io/apimachinery/pkg/labels"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// TestJudge draws clusters, and compares every connection between their pods, and with addresses outside, with cyclonus.
func TestJudge(t *testing.T) {
	flows, allowed := 0, 0
	for seed := range uint64(400) {
		c := drawn(t, seed)
		for _, f := range c.flows() {
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

func drawn(t *testing.T, seed uint64) cluster {
	t.Helper()
	w := world{rand.New(rand.NewPCG(seed, 1))}
	var c cluster
	c.snapshot.Namespaces = map[string]labels.Set{}
	for i, namespace := range names {
		// The API server sets the label, which cyclonus has to be given.
		c.snapshot.Namespaces[namespace] = labels.Merge(w.labels(), labels.Set{"kubernetes.io/metadata.name": namespace})
		for j := range 3 {
			c.snapshot.Pods = append(c.snapshot.Pods, &policy.Pod{
				Namespace: namespace, Name: fmt.Sprintf("pod%d", j), Labels: w.labels(),
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i), byte(1 + 126*j)})},
				Ports: []policy.Port{{Name: "http", Protocol: policy.TCP, Number: 80}, {Name: "dns", Protocol: policy.UDP, Number: 81}},
			})
		}
	}
	for i := range w.IntN(6) {
		p := w.policy(i)
		c.policies = append(c.policies, &p)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.Read(bytes.NewReader(text), &c.snapshot); err != nil {
			t.Fatal(err)
		}
	}
	rules, skips := policy.New(c.snapshot)
	if len(skips) > 0 {
		t.Fatalf("seed %d: %v", seed, skips)
	}
	c.rules = rules
	given := slices.Clone(c.policies)
	for i, p := range given {
		if len(p.Spec.PolicyTypes) == 0 { // cyclonus wants what the API server sets
			p = p.DeepCopy()
			p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(p.Spec.Egress) > 0 {
				p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
			}
			given[i] = p
		}
	}
	c.theirs = matcher.BuildNetworkPolicies(true, given)
	return c
}

// flows are all that the cluster may see, to some ports.
func (c cluster) flows() (all []policy.Flow) {
	ends := make([]policy.Endpoint, 0, len(c.snapshot.Pods)+len(outside))
	for _, p := range c.snapshot.Pods {
		ends = append(ends, policy.Endpoint{Addr: p.Addrs[0], Pod: p})
	}
	for _, addr := range outside {
		ends = append(ends, policy.Endpoint{Addr: netip.MustParseAddr(addr)})
	}
	for _, from := range ends {
		for _, to := range ends {
			if from == to {
				continue // a pod reaches itself; cyclonus leaves that open
			}
			for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
				for _, port := range portsDrawn {
					all = append(all, policy.Flow{From: from, To: to, Protocol: protocol, Port: uint16(port)})
				}
			}
		}
	}
	return all
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
