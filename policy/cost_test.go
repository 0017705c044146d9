package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestCost: what the kernel gets for policies grows with what they say, not with products of it. In each direction a chain has
// at most four rules for each entry of its policies; and all sets together have at most four elements for each entry, and for
// each pod that a rule is about, which counts once however many of the rule's peers it is.
func TestCost(t *testing.T) {
	worst, most := 0.0, 0.0
	for seed := range uint64(300) {
		w := policytest.New(seed)
		w.NotIn, w.Cluster, w.More = true, int(seed%3), int(seed%7)*5
		s := w.Snapshot(4, 6)
		switch seed % 3 {
		case 1:
			one(w, &s)
		case 2:
			s.Policies = append(s.Policies, hostile(w, 1+w.IntN(60)))
			s.Pods[0].Namespace = "x"
		}
		rules, elements := cost(t, w.Site(1), s)
		worst, most = max(worst, rules), max(most, elements)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if t.Logf("at most %.2f rules and %.2f elements for each", worst, most); worst < 1 || most < 0.5 {
		t.Error("the policies that are drawn cost little")
	}
	for _, n := range []int{10, 100, 1000} {
		s, site := policytest.Square(n)
		cost(t, site, s)
	}
}

// one lets all pods be selected by the same policies.
func one(w policytest.World, s *policy.Snapshot) {
	for i := range s.Policies {
		s.Policies[i].Namespace, s.Policies[i].Spec.PodSelector = "x", metav1.LabelSelector{}
	}
	for i := range s.Pods {
		s.Pods[i].Namespace = "x"
	}
}

// hostile draws a policy with one rule in each direction that has many peers, which are nearly all the same pods, or ranges of
// which each has many exceptions, and many ports.
func hostile(w policytest.World, n int) (p policy.NetworkPolicy) {
	p.Namespace, p.Name = "x", "hostile"
	p.Spec.PolicyTypes = []policy.Direction{policy.Ingress, policy.Egress}
	var peers []policy.Peer
	var ports []policy.RulePort
	block := &policy.IPBlock{CIDR: "2000::/3"}
	for i := range n {
		peers = append(peers, policy.Peer{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "i", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint(i)}}}}})
		number := intstr.FromInt(1 + 2*i)
		if w.IntN(5) == 0 {
			number = intstr.FromString(fmt.Sprint("port", i))
		}
		protocol := []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}[w.IntN(3)]
		ports = append(ports, policy.RulePort{Protocol: &protocol, Port: &number})
		block.Except = append(block.Except, fmt.Sprintf("2000:%x::%x/128", w.IntN(1<<16), i))
	}
	peers = append(peers, policy.Peer{IPBlock: block}, policy.Peer{IPBlock: &policy.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", w.IntN(256))}})
	p.Spec.Ingress = []policy.IngressRule{{From: peers, Ports: ports}}
	p.Spec.Egress = []policy.EgressRule{{To: peers, Ports: ports}}
	return p
}

// cost compares the tables of a snapshot with its entries, and returns how many rules there are for each entry of a chain, and
// elements for each entry and pod, where there are most.
func cost(t *testing.T, site policy.Site, s policy.Snapshot) (rules, elements float64) {
	t.Helper()
	table, _ := policy.NewTable(site, s)
	entries := map[string]map[policy.Direction]int{}
	all := 0
	for _, p := range s.Policies {
		in, out := ruleEntries(p)
		entries[p.Namespace+"/"+p.Name] = map[policy.Direction]int{policy.Ingress: in, policy.Egress: out}
		all += in + out + matched(s, p)
	}
	for _, p := range s.ClusterPolicies {
		in, out := clusterEntries(p)
		entries[p.Name] = map[policy.Direction]int{policy.Ingress: in, policy.Egress: out}
		all += in + out + clusterMatched(s, p)
	}
	chains, sets := table.Chains(), map[netstate.Family]int{}
	for _, o := range table.State() {
		switch o := o.(type) {
		case netstate.Element:
			if strings.Contains(o.Set, "-") && o.Verdict == "" { // those of policies: pods-, block-, ports- and port-
				sets[netstate.FamilyOf(o.Prefix.Addr())]++
			}
		case netstate.Filter:
			c := chains[o.Key()]
			if c.Policies == "" {
				continue
			}
			of := 0
			for name := range strings.SplitSeq(c.Policies, ",") {
				of += entries[name][c.Direction]
			}
			rules = max(rules, float64(strings.Count(o.Rules, "\n")+1)/float64(of))
			if rules > 4 {
				t.Errorf("a chain of %s has %d rules for %d entries", c.Policies, strings.Count(o.Rules, "\n")+1, of)
			}
		}
	}
	for family, n := range sets {
		elements = max(elements, float64(n)/float64(all))
		if n > 4*all {
			t.Errorf("the sets of %s have %d elements for %d entries and pods", family, n, all)
		}
	}
	return rules, elements
}

// ruleEntries are the entries of the lists of a policy by direction, and one for the policy.
func ruleEntries(p policy.NetworkPolicy) (in, out int) {
	in, out = 1, 1
	for _, r := range p.Spec.Ingress {
		in += 1 + len(r.Ports) + peerEntries(r.From)
	}
	for _, r := range p.Spec.Egress {
		out += 1 + len(r.Ports) + peerEntries(r.To)
	}
	return in, out
}

func peerEntries(peers []policy.Peer) int {
	n := len(peers)
	for _, p := range peers {
		if p.IPBlock != nil {
			n += len(p.IPBlock.Except)
		}
	}
	return n
}

func clusterEntries(p policy.ClusterNetworkPolicy) (in, out int) {
	in, out = 1, 1
	for _, r := range p.Spec.Ingress {
		in += 1 + len(r.Protocols) + len(r.From)
	}
	for _, r := range p.Spec.Egress {
		out += 1 + len(r.Protocols)
		for _, to := range r.To {
			out += max(1, len(to.Networks))
		}
	}
	return in, out
}

// matched returns how many pods the rules of a policy are about, each of which counts once in a rule, and how many of the pods'
// ports.
func matched(s policy.Snapshot, p policy.NetworkPolicy) (n int) {
	for _, r := range p.Spec.Ingress {
		n += about(s, p.Namespace, r.From, r.Ports)
	}
	for _, r := range p.Spec.Egress {
		n += about(s, p.Namespace, r.To, r.Ports)
	}
	return n
}

// about counts the pods that are one of the peers, by a policy that allows them everything, and the ports of all pods that a rule
// names.
func about(s policy.Snapshot, namespace string, peers []policy.Peer, ports []policy.RulePort) (n int) {
	var all policy.NetworkPolicy
	all.Namespace, all.Spec.Ingress = namespace, []policy.IngressRule{{From: peers}}
	subject := &policy.Pod{Namespace: namespace, Name: "subject"}
	r, _ := policy.New(policy.Snapshot{Namespaces: s.Namespaces, Policies: []policy.NetworkPolicy{all}})
	for _, pod := range s.Pods {
		if len(peers) > 0 && r.Judge(policy.Flow{From: policy.Endpoint{Pod: pod}, To: policy.Endpoint{Pod: subject}}).Allowed() {
			n++
		}
		for _, port := range pod.Ports {
			n += named(port, ports)
		}
	}
	return n
}

// clusterMatched is what matched is, of a ClusterNetworkPolicy.
func clusterMatched(s policy.Snapshot, p policy.ClusterNetworkPolicy) (n int) {
	for _, r := range p.Spec.Ingress {
		n += clusterAbout(s, r.From, r.Protocols)
	}
	for _, r := range p.Spec.Egress {
		var peers []policy.ClusterPeer
		for _, to := range r.To {
			if to.Namespaces != nil || to.Pods != nil {
				peers = append(peers, to.ClusterPeer)
			}
		}
		n += clusterAbout(s, peers, r.Protocols)
	}
	return n
}

func clusterAbout(s policy.Snapshot, peers []policy.ClusterPeer, protocols []policy.ClusterProtocol) (n int) {
	var all policy.ClusterNetworkPolicy
	all.Spec = policy.ClusterSpec{Tier: policy.Admin, Subject: policy.ClusterPeer{Namespaces: &metav1.LabelSelector{}},
		Ingress: []policy.ClusterIngressRule{{Action: policy.Accept, From: peers}}}
	r, _ := policy.New(policy.Snapshot{Namespaces: s.Namespaces, ClusterPolicies: []policy.ClusterNetworkPolicy{all}})
	subject := &policy.Pod{Namespace: "x", Name: "subject"}
	for _, pod := range s.Pods {
		if r.Judge(policy.Flow{From: policy.Endpoint{Pod: pod}, To: policy.Endpoint{Pod: subject}}).Ingress.Decision != nil {
			n++
		}
		for _, port := range pod.Ports {
			for _, p := range protocols {
				if p.DestinationNamedPort == port.Name {
					n++
				}
			}
		}
	}
	return n
}

// named is 1 if one of the rule's ports has the name of the pod's.
func named(port policy.Port, ports []policy.RulePort) int {
	for _, p := range ports {
		protocol := policy.TCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if p.Port != nil && p.Port.Type == intstr.String && p.Port.StrVal == port.Name && protocol == port.Protocol {
			return 1
		}
	}
	return 0
}
