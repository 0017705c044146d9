package policies

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/intstr"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// world draws pods and policies at random, from few labels, ports and ranges, so that they often meet.
type world struct{ *rand.Rand }

var (
	names      = []string{"x", "y", "z"}
	blocks     = []string{"0.0.0.0/0", "10.244.0.0/16", "10.244.1.0/24", "10.244.1.128/25", "10.244.1.2/32", "192.0.2.0/24", "::/0"}
	outside    = []string{"192.0.2.7", "203.0.113.9"}
	protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	portNames  = []string{"http", "dns"}
	portsDrawn = []int32{80, 81, 82, 8080}
)

func pick[T any](w world, from []T) T { return from[w.IntN(len(from))] }

// some is a slice of up to most drawn elements; nil with a probability of one half if none are drawn.
func some[T any](w world, most int, draw func() T) (all []T) {
	if w.IntN(2) == 0 {
		all = []T{}
	}
	for range w.IntN(most + 1) {
		all = append(all, draw())
	}
	return all
}

func (w world) labels() map[string]string {
	all := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if w.IntN(4) > 0 {
			all[key] = pick(w, names)
		}
	}
	return all
}

func (w world) selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if w.IntN(2) == 0 {
		s.MatchLabels = map[string]string{"app": pick(w, names)}
	}
	for range w.IntN(5) / 3 {
		// Not NotIn: cyclonus takes it that the label is there, where Kubernetes also selects what does not have it.
		op := pick(w, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist})
		one := metav1.LabelSelectorRequirement{Key: pick(w, []string{"app", "tier"}), Operator: op}
		if op == metav1.LabelSelectorOpIn {
			one.Values = []string{pick(w, names), pick(w, names)}
		}
		s.MatchExpressions = append(s.MatchExpressions, one)
	}
	return s
}

func (w world) port() (p networkingv1.NetworkPolicyPort) {
	if w.IntN(3) > 0 {
		protocol := pick(w, protocols)
		p.Protocol = &protocol
	}
	switch w.IntN(4) {
	case 0:
	case 1:
		name := intstr.FromString(pick(w, portNames))
		p.Port = &name
	default:
		first := pick(w, portsDrawn)
		number := intstr.FromInt32(first)
		p.Port = &number
		if w.IntN(3) == 0 {
			last := first + int32(w.IntN(3))
			p.EndPort = &last
		}
	}
	return p
}

func (w world) peer() (p networkingv1.NetworkPolicyPeer) {
	switch w.IntN(4) {
	case 0:
		block := netip.MustParsePrefix(pick(w, blocks))
		p.IPBlock = &networkingv1.IPBlock{CIDR: block.String()}
		for _, text := range some(w, 2, func() string { return pick(w, blocks) }) {
			if except := netip.MustParsePrefix(text); block.Contains(except.Addr()) && block.Bits() < except.Bits() {
				p.IPBlock.Except = append(p.IPBlock.Except, text)
			}
		}
		return p
	case 1:
		s := w.selector()
		p.PodSelector = &s
	case 2:
		s := w.selector()
		p.NamespaceSelector = &s
	case 3:
		s, of := w.selector(), w.selector()
		p.PodSelector, p.NamespaceSelector = &s, &of
	}
	return p
}

func (w world) policy(i int) (p networkingv1.NetworkPolicy) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
	p.Namespace, p.Name = pick(w, names), fmt.Sprintf("p%d", i)
	p.Spec.PodSelector = w.selector()
	p.Spec.Ingress = some(w, 2, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{Ports: some(w, 2, w.port), From: some(w, 3, w.peer)}
	})
	p.Spec.Egress = some(w, 2, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{Ports: some(w, 2, w.port), To: some(w, 3, w.peer)}
	})
	switch w.IntN(4) {
	case 0: // as the API server sets them
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	case 1:
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	case 2:
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return p
}
