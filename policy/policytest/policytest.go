// Package policytest draws clusters with policies at random, for tests that compare what judges say of them.
package policytest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/subnet"
)

// World draws from few labels, ports and ranges, so that they often meet. Pods are 10.244.N.… and fd00:10:244:N::… on
// node N, which has 10.244.N.0/24 and fd00:10:244:N::/64, from 1 on.
type World struct {
	*rand.Rand

	Nodes int
	// NotIn is whether selectors may have the operator NotIn, which cyclonus gets wrong: it takes it that the label is
	// there, where Kubernetes also selects what does not have it.
	NotIn bool
	// Cluster is how many ClusterNetworkPolicies may be drawn; with any, also the nodes and their addresses.
	Cluster int
	// More is how many more peers, ports and exceptions a rule may have than a few.
	More int
}

// New returns a world of three nodes.
func New(seed uint64) World { return World{Rand: rand.New(rand.NewPCG(seed, 1)), Nodes: 3} } //nolint:gosec // no secrets

var (
	words      = []string{"x", "y", "z"}
	blocks     = []string{"0.0.0.0/0", "10.244.0.0/16", "10.244.1.0/24", "10.244.1.128/25", "10.244.1.2/32", "192.0.2.0/24", "::/0", "fd00:10:244::/48", "fd00:10:244:1::/64", "fd00:10:244:1::2/128"}
	protocols  = []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}
	portNames  = []string{"http", "dns"}
	namedPorts = []policy.Port{{Name: "http", Protocol: policy.TCP, Number: 80}, {Name: "http", Protocol: policy.TCP, Number: 81},
		{Name: "dns", Protocol: policy.UDP, Number: 81}}
)

// Ports are the port numbers that policies name, or have beside them.
var Ports = []uint16{80, 81, 82, 8080}

// Outside are addresses that are no pod's.
var Outside = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::7")}

func pick[T any](w World, from []T) T { return from[w.IntN(len(from))] }

// some returns up to most drawn elements; nil with a probability of one half if there are none.
func some[T any](w World, most int, draw func() T) (all []T) {
	if w.IntN(2) == 0 {
		all = []T{}
	}
	for range w.IntN(most + 1) {
		all = append(all, draw())
	}
	return all
}

// Snapshot draws namespaces, pods on all nodes, and up to most policies.
func (w World) Snapshot(podsPerNode, most int) policy.Snapshot {
	s := policy.Snapshot{Namespaces: map[string]labels.Set{}}
	for _, name := range words {
		// The API server sets the label.
		s.Namespaces[name] = labels.Merge(w.Labels(), labels.Set{"kubernetes.io/metadata.name": name})
	}
	for node := 1; node <= w.Nodes; node++ {
		for i := range podsPerNode {
			p := w.Pod(node, i)
			s.Pods = append(s.Pods, &p)
		}
	}
	for i := range w.IntN(most + 1) {
		s.Policies = append(s.Policies, w.Policy(fmt.Sprintf("p%d", i)))
	}
	if w.Cluster > 0 {
		w.addCluster(&s)
	}
	return s
}

// Pod draws the i-th pod of a node. Some have hosts below 128, and some above.
func (w World) Pod(node, i int) policy.Pod {
	host := byte(2 + i/2 + i%2*126)
	p := policy.Pod{Namespace: pick(w, words), Name: fmt.Sprintf("pod%d-%d", node, i), UID: fmt.Sprintf("%d-%d", node, i),
		Created: time.Unix(int64(1000*node+i), 0), Node: fmt.Sprintf("node%d", node), Labels: w.Labels(),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(node), host}), //nolint:gosec // few nodes
			netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 2, 0x44, 0, byte(node), 15: host})}} //nolint:gosec // few nodes
	p.Ports = append(p.Ports, some(w, 2, func() policy.Port { return pick(w, namedPorts) })...)
	return p
}

// Networks are those of the pods of all nodes.
var Networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}

// Site returns a node of the world.
func (w World) Site(node int) policy.Site {
	return policy.Site{Node: fmt.Sprintf("node%d", node), Bridge: "cni0", Networks: Networks, Subnets: []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", node)), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", node))}}
}

// Leases are those of all nodes, whose own addresses are 172.30.0.N and fd30::N.
func (w World) Leases() (all []subnet.Lease) {
	for node := 1; node <= w.Nodes; node++ {
		site := w.Site(node)
		lease := Lease(site.Node, fmt.Sprintf("172.30.0.%d", node), site.Subnets[0].String())
		lease.Stacks = append(lease.Stacks, Lease("", fmt.Sprintf("fd30::%x", node), site.Subnets[1].String()).Stacks...)
		all = append(all, lease)
	}
	return all
}

// Lease returns a lease of one family.
func Lease(node, underlay, of string) subnet.Lease {
	return subnet.Lease{Node: node, Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix(of), Underlay: netip.MustParseAddr(underlay)}}}
}

// Claims draws pods of one node, younger than all others, whose status has the addresses of other nodes' pods, and the first
// addresses of their subnets.
func (w World) Claims(s policy.Snapshot, by int) (all []*policy.Pod) {
	claim := func(addrs []netip.Addr) {
		p := w.Pod(by, len(all))
		p.Name, p.UID, p.Addrs, p.Created = "claim-"+p.Name, "claim-"+p.UID, addrs, time.Unix(1_000_000, 0)
		all = append(all, &p)
	}
	for _, p := range s.Pods {
		if p.Node != w.Site(by).Node {
			claim(p.Addrs)
		}
	}
	for _, l := range w.Leases() {
		if l.Node != w.Site(by).Node {
			claim([]netip.Addr{l.Stacks[0].Subnet.Addr(), l.Stacks[1].Subnet.Addr()})
		}
	}
	return all
}

// Ports draws the ports of a node's pods, by their names: most pods have one, and so has a pod that nobody knows. Some have no
// addresses, as an older CNI plugin makes them.
func (w World) Ports(s policy.Snapshot, node int) (all []netstate.Port) {
	add := func(name string, addrs []netip.Addr) {
		p := netstate.Port{Name: name, Bridge: "cni0"}
		if w.IntN(8) > 0 {
			p = p.WithAddrs(addrs)
		}
		if w.IntN(8) > 0 {
			all = append(all, p)
		}
	}
	for _, p := range s.Pods {
		if p.Node == w.Site(node).Node {
			add("veth"+p.UID, p.Addrs)
		}
	}
	add("vethx", w.Pod(node, 77).Addrs)
	slices.SortFunc(all, func(a, b netstate.Port) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Labels draws labels.
func (w World) Labels() labels.Set {
	all := labels.Set{}
	for _, key := range []string{"app", "tier"} {
		if w.IntN(4) > 0 {
			all[key] = pick(w, words)
		}
	}
	return all
}

func (w World) selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if w.IntN(2) == 0 {
		s.MatchLabels = map[string]string{"app": pick(w, words)}
	}
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	if w.NotIn {
		operators = append(operators, metav1.LabelSelectorOpNotIn)
	}
	for range w.IntN(5) / 3 {
		one := metav1.LabelSelectorRequirement{Key: pick(w, []string{"app", "tier"}), Operator: pick(w, operators)}
		if one.Operator == metav1.LabelSelectorOpIn || one.Operator == metav1.LabelSelectorOpNotIn {
			one.Values = []string{pick(w, words), pick(w, words)}
		}
		s.MatchExpressions = append(s.MatchExpressions, one)
	}
	return s
}

func (w World) port() (p policy.RulePort) {
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
		first := int32(pick(w, Ports))
		number := intstr.FromInt32(first)
		p.Port = &number
		if w.IntN(3) == 0 {
			last := first + int32(w.IntN(3)) //nolint:gosec // below 3
			p.EndPort = &last
		}
	}
	return p
}

func (w World) peer() (p policy.Peer) {
	switch w.IntN(4) {
	case 0:
		block := netip.MustParsePrefix(pick(w, blocks))
		p.IPBlock = &policy.IPBlock{CIDR: block.String()}
		for _, text := range some(w, 2+w.More, func() string { return pick(w, blocks) }) {
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

// Policy draws a policy.
func (w World) Policy(name string) (p policy.NetworkPolicy) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
	p.Namespace, p.Name = pick(w, words), name
	p.Spec.PodSelector = w.selector()
	p.Spec.Ingress = some(w, 2, func() policy.IngressRule {
		return policy.IngressRule{Ports: some(w, 2+w.More, w.port), From: some(w, 3+w.More, w.peer)}
	})
	p.Spec.Egress = some(w, 2, func() policy.EgressRule {
		return policy.EgressRule{Ports: some(w, 2+w.More, w.port), To: some(w, 3+w.More, w.peer)}
	})
	switch w.IntN(4) {
	case 0: // as the API server sets them
		p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, policy.Egress)
		}
	case 1:
		p.Spec.PolicyTypes = []policy.Direction{policy.Egress}
	case 2:
		p.Spec.PolicyTypes = []policy.Direction{policy.Ingress, policy.Egress}
	}
	return p
}

// Flows returns all connections between pods, and with nodes and addresses outside, of one family, to some ports.
func Flows(s policy.Snapshot, protocols ...policy.Protocol) (all []policy.Flow) {
	var ends []policy.Endpoint
	for _, p := range s.Pods {
		for _, addr := range p.Addrs {
			ends = append(ends, policy.Endpoint{Addr: addr, Pod: p})
		}
	}
	for _, addr := range Outside {
		ends = append(ends, policy.Endpoint{Addr: addr})
	}
	for _, n := range s.Nodes {
		for _, addr := range n.Addrs {
			ends = append(ends, policy.Endpoint{Addr: addr})
		}
	}
	for _, from := range ends {
		for _, to := range ends {
			if from.Addr.Is4() != to.Addr.Is4() || from.Pod == nil && to.Pod == nil {
				continue
			}
			for _, protocol := range protocols {
				for _, port := range Ports {
					all = append(all, policy.Flow{From: from, To: to, Protocol: protocol, Port: port})
				}
			}
		}
	}
	return all
}
