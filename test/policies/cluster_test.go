package policies

import (
	"encoding/json"
	"net"
	"testing"

	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"
	"sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	evaluator "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestJudgeCluster draws clusters with ClusterNetworkPolicies, and compares every connection with what
// kube-network-policies says of their tiers, and cyclonus of the NetworkPolicies between them.
func TestJudgeCluster(t *testing.T) {
	flows, allowed := 0, 0
	decided := map[policy.Tier]int{}
	for seed := range uint64(150) {
		w := policytest.New(10000 + seed)
		w.Cluster = 4
		c := drawn(t, w)
		tiers := newTiers(t, c.snapshot)
		for _, f := range policytest.Flows(c.snapshot, policy.TCP, policy.UDP, policy.SCTP) {
			if f.From.Pod == f.To.Pod {
				continue
			}
			got := c.rules.Judge(f)
			flows++
			if got.Allowed() {
				allowed++
			}
			for direction, side := range map[policy.Direction]policy.Side{policy.Egress: got.Egress, policy.Ingress: got.Ingress} {
				if side.Decision != nil {
					decided[side.Decision.Tier]++
				}
				if want := tiers.allows(t, c, direction, f); side.Allowed() != want {
					text, _ := json.MarshalIndent(c.snapshot.ClusterPolicies, "", " ")
					t.Fatalf("seed %d, %s, %s: got %+v, want %v\n%s", 10000+seed, f, direction, side, want, text)
				}
			}
		}
	}
	t.Logf("%d flows, %d of them allowed; decisions: %v", flows, allowed, decided)
	if allowed > flows*9/10 || decided[policy.Admin] < flows/30 || decided[policy.Baseline] < flows/30 {
		t.Errorf("%d of %d flows are allowed, and tiers decide %v: the policies that are drawn say little", allowed, flows, decided)
	}
}

// tiers are the evaluators of kube-network-policies.
type tiers struct {
	admin, baseline *evaluator.ClusterNetworkPolicy
	snapshot        policy.Snapshot
}

func newTiers(t *testing.T, s policy.Snapshot) tiers {
	t.Helper()
	policies := externalversions.NewSharedInformerFactory(fake.NewSimpleClientset(), 0).Policy().V1alpha2().ClusterNetworkPolicies()
	for _, p := range s.ClusterPolicies {
		convert(t, p, &v1alpha2.ClusterNetworkPolicy{}, policies.Informer().GetStore())
	}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, n := range s.Nodes {
		node := &corev1.Node{}
		node.Name, node.Labels = n.Name, n.Labels
		for _, a := range n.Addrs {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		if err := nodes.Add(node); err != nil {
			t.Fatal(err)
		}
	}
	lister := corelisters.NewNodeLister(nodes)
	return tiers{evaluator.NewClusterNetworkPolicy(v1alpha2.AdminTier, policies, nil, lister),
		evaluator.NewClusterNetworkPolicy(v1alpha2.BaselineTier, policies, nil, lister), s}
}

// convert stores a policy as one of the API's own type.
func convert(t *testing.T, from policy.ClusterNetworkPolicy, to *v1alpha2.ClusterNetworkPolicy, store cache.Store) {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatal(err)
	}
	if err := store.Add(to); err != nil {
		t.Fatal(err)
	}
}

// allows asks one tier after the other.
func (e tiers) allows(t *testing.T, c cluster, d policy.Direction, f policy.Flow) bool {
	t.Helper()
	from, to := e.pod(f.From.Pod), e.pod(f.To.Pod)
	packet := &network.Packet{SrcIP: net.IP(f.From.Addr.AsSlice()), DstIP: net.IP(f.To.Addr.AsSlice()), DstPort: int(f.Port), SrcPort: 40000,
		Proto: corev1.Protocol(f.Protocol)}
	ask := func(tier *evaluator.ClusterNetworkPolicy) api.Verdict {
		evaluate := tier.EvaluateEgress
		if d == policy.Ingress {
			evaluate = tier.EvaluateIngress
		}
		v, err := evaluate(t.Context(), packet, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := ask(e.admin); v != api.VerdictNext {
		return v == api.VerdictAccept
	}
	if allowed, isolated := c.networkPolicies(d, f); isolated {
		return allowed
	}
	return ask(e.baseline) != api.VerdictDeny
}

// networkPolicies is what cyclonus says of one end, and whether any policy isolates that.
func (c cluster) networkPolicies(d policy.Direction, f policy.Flow) (allowed, isolated bool) {
	traffic := c.traffic(f)
	verdict, end := c.theirs.IsTrafficAllowed(traffic), traffic.Source
	allowed = verdict.Egress.IsAllowed()
	if d == policy.Ingress {
		end, allowed = traffic.Destination, verdict.Ingress.IsAllowed()
	}
	if end.Internal == nil {
		return true, false
	}
	return allowed, len(c.theirs.TargetsApplyingToPod(d == policy.Ingress, end.Internal.Namespace, end.Internal.PodLabels)) > 0
}

// pod is a pod in the words of kube-network-policies.
func (e tiers) pod(p *policy.Pod) *api.PodInfo {
	if p == nil {
		return nil
	}
	info := &api.PodInfo{Name: p.Name, Labels: p.Labels, Node: &api.Node{Name: p.Node},
		Namespace: &api.Namespace{Name: p.Namespace, Labels: e.snapshot.Namespaces[p.Namespace]}}
	for _, port := range p.Ports {
		info.ContainerPorts = append(info.ContainerPorts, &api.ContainerPort{Name: port.Name, Port: int32(port.Number), Protocol: string(port.Protocol)})
	}
	return info
}
