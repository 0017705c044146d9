package policytest

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/policy"
)

// addCluster adds nodes, 172.30.0.N and fd30::N, and ClusterNetworkPolicies.
func (w World) addCluster(s *policy.Snapshot) {
	for node := 1; node <= w.Nodes; node++ {
		s.Nodes = append(s.Nodes, policy.Node{Name: fmt.Sprintf("node%d", node), Labels: w.Labels(), Addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{172, 30, 0, byte(node)}),         //nolint:gosec // few nodes
			netip.AddrFrom16([16]byte{0xfd, 0x30, 15: byte(node)})}}) //nolint:gosec // few nodes
	}
	for i := range w.IntN(w.Cluster + 1) {
		s.ClusterPolicies = append(s.ClusterPolicies, w.ClusterPolicy(fmt.Sprintf("c%d", i)))
	}
}

// ClusterPolicy draws a ClusterNetworkPolicy. Some have the same priority.
func (w World) ClusterPolicy(name string) (p policy.ClusterNetworkPolicy) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "policy.networking.k8s.io/v1alpha2", Kind: "ClusterNetworkPolicy"}
	p.Name = name
	p.Spec.Tier = pick(w, []policy.Tier{policy.Admin, policy.Baseline})
	p.Spec.Priority = int32(w.IntN(3)) //nolint:gosec // below 3
	p.Spec.Subject = w.clusterPeer()
	for range w.IntN(4) {
		r := policy.ClusterIngressRule{Action: w.action(), Protocols: some(w, 2+w.More, w.protocol)}
		for range 1 + w.IntN(2+w.More) {
			r.From = append(r.From, w.clusterPeer())
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range w.IntN(4) {
		r := policy.ClusterEgressRule{Action: w.action(), Protocols: some(w, 2+w.More, w.protocol)}
		for range 1 + w.IntN(2+w.More) {
			r.To = append(r.To, w.egressPeer())
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

func (w World) action() policy.Action {
	return pick(w, []policy.Action{policy.Accept, policy.Deny, policy.Deny, policy.Pass})
}

func (w World) clusterPeer() (p policy.ClusterPeer) {
	s := w.selector()
	if w.IntN(2) == 0 {
		p.Namespaces = &s
		return p
	}
	p.Pods = &policy.NamespacedPods{NamespaceSelector: w.selector(), PodSelector: s}
	return p
}

func (w World) egressPeer() (p policy.ClusterEgressPeer) {
	switch w.IntN(4) {
	case 0:
		s := w.selector()
		p.Nodes = &s
	case 1:
		for range 1 + w.IntN(3) {
			p.Networks = append(p.Networks, pick(w, append([]string{"172.30.0.0/30", "fd30::/126"}, blocks...)))
		}
	default:
		p.ClusterPeer = w.clusterPeer()
	}
	return p
}

func (w World) protocol() (p policy.ClusterProtocol) {
	if w.IntN(5) == 0 {
		p.DestinationNamedPort = pick(w, portNames)
		return p
	}
	ports := &policy.ClusterPorts{DestinationPort: &policy.ClusterPort{Number: int32(pick(w, Ports))}}
	if w.IntN(3) == 0 {
		first := int32(pick(w, Ports))
		last := first + 1 + int32(w.IntN(2)) //nolint:gosec // below 2
		ports.DestinationPort = &policy.ClusterPort{Range: &policy.ClusterPortRange{Start: first, End: last}}
	}
	switch pick(w, protocols) {
	case policy.TCP:
		p.TCP = ports
	case policy.UDP:
		p.UDP = ports
	case policy.SCTP:
		p.SCTP = ports
	}
	return p
}
