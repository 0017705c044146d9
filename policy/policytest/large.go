package policytest

import (
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// Large returns a cluster of many pods in 200 namespaces, 110 of them on node1, and 1,000 policies, and the site of node1.
// The policies of a namespace isolate its applications; each allows another one's pods, and those of other namespaces.
func Large(pods int) (s policy.Snapshot, site policy.Site) { return Scaled(pods, 1000) }

// Scaled is Large with another number of policies.
func Scaled(pods, policies int) (s policy.Snapshot, site policy.Site) {
	const namespaces, local = 200, 110
	s.Namespaces = map[string]labels.Set{}
	for i := range namespaces {
		s.Namespaces[fmt.Sprintf("ns%d", i)] = labels.Set{"team": fmt.Sprint(i % 20)}
	}
	for i := range pods {
		node := 1
		if i >= local {
			node = 2 + i%90
		}
		s.Pods = append(s.Pods, &policy.Pod{Namespace: fmt.Sprintf("ns%d", i%namespaces), Name: fmt.Sprintf("pod%d", i), UID: fmt.Sprint(i),
			Created: time.Unix(int64(i), 0), Node: fmt.Sprintf("node%d", node), Labels: labels.Set{"app": fmt.Sprint(i / namespaces % 5), "tier": "x"},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(100 + i/65536), byte(i / 256), byte(i)})}}) //nolint:gosec // parts of a number
	}
	port := intstr.FromInt32(8080)
	for i := range policies {
		p := policy.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns%d", i%namespaces), Name: fmt.Sprintf("policy%d", i)}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint(i / namespaces % 5)}
		p.Spec.Ingress = []policy.IngressRule{{Ports: []policy.RulePort{{Port: &port}}, From: []policy.Peer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint((i/namespaces + 1) % 5)}}},
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 20)}}}}}}
		p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
		s.Policies = append(s.Policies, p)
	}
	site = policy.Site{Node: "node1", Bridge: "cni0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.100.0.0/24")}}
	for _, p := range s.Pods[:min(local, pods)] {
		site.Ports = append(site.Ports, netstate.Port{Name: "veth" + p.UID}.WithAddrs(p.Addrs))
	}
	return s, site
}

// Square returns a cluster with one policy, which allows many peers many ports each, and the site of the node of the pod that
// it isolates. Each peer is one pod of other labels, and each port touches no other one.
func Square(n int) (s policy.Snapshot, site policy.Site) {
	const namespace = "shop"
	s.Namespaces = map[string]labels.Set{namespace: {}}
	p := policy.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "square"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "0"}
	p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
	var rule policy.IngressRule
	for i := range n {
		app := fmt.Sprint(i)
		s.Pods = append(s.Pods, &policy.Pod{Namespace: namespace, Name: "pod" + app, UID: app, Node: fmt.Sprintf("node%d", min(i, 1)+1),
			Labels: labels.Set{"app": app}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 100, byte(i / 256), byte(i)})}}) //nolint:gosec // parts of a number
		port := intstr.FromInt(1 + 2*i)
		rule.Ports = append(rule.Ports, policy.RulePort{Port: &port})
		rule.From = append(rule.From, policy.Peer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}})
	}
	p.Spec.Ingress = []policy.IngressRule{rule}
	s.Policies = []policy.NetworkPolicy{p}
	return s, policy.Site{Node: "node1", Bridge: "cni0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.100.0.0/24")}}
}

// Expensive returns a cluster of pods, and of some namespaces whose policies cost as much as a number says, or a little less: each
// has one pod on node1, and a policy that lets nearly all pods of the cluster reach it, in as many rules as that takes.
func Expensive(pods, namespaces, cost int) (s policy.Snapshot, site policy.Site) {
	s, site = Scaled(pods, 0)
	for i := range namespaces {
		p := policy.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.Pods[i].Namespace, Name: "expensive"}}
		p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
		for k := range cost / (pods + 1) {
			not := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("none-%d-%d", i, k)}}}}
			p.Spec.Ingress = append(p.Spec.Ingress, policy.IngressRule{From: []policy.Peer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: not}}})
		}
		s.Policies = append(s.Policies, p)
	}
	return s, site
}
