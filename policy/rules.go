package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"
)

// Rules are policies in a form that is quick to apply.
type Rules struct {
	byNamespace     map[string][]*Policy
	admin, baseline []*ClusterPolicy // in the order in which they are asked
	blocks          [][]addrRange    // the ranges of each ipBlock, without what tunnels add
}

// Policy is one policy.
type Policy struct {
	Name            string // namespace/name
	UID             string
	Created         time.Time
	LeftOut         bool // it is beyond a Budget: the pods that it selects are closed
	Spec            Spec
	namespace       string
	subject         labels.Selector
	ingress, egress []rule
}

// rule allows connections with one of the peers to one of the ports.
type rule struct {
	anyPeer, anyPort bool
	peers            []peer
	ports            []RulePort
}

// peer is address ranges, or pods of some namespaces.
type peer struct {
	ranges           []addrRange     // as union makes them
	namespaces, pods labels.Selector // pods is nil where ranges are
	namespaceLabels  func(string) labels.Set
	namespace        string // the policy's, if namespaces is nil
}

// Skip is a part of a policy that cannot be understood, and allows nothing. What denies of a ClusterNetworkPolicy then denies
// more.
type Skip struct {
	Kind   string // NetworkKind or ClusterKind
	Policy string // namespace/name, or a ClusterNetworkPolicy's name
	Err    error
}

// The kinds of policies, as the API names them.
const (
	NetworkKind = "NetworkPolicy"
	ClusterKind = "ClusterNetworkPolicy"
)

// New reads the policies of a snapshot. What is wrong in one, and an API server would have refused, allows nothing; the
// rest of the policy applies. One whose podSelector is wrong isolates all pods of its namespace, and allows nothing.
func New(s Snapshot) (Rules, []Skip) {
	r := Rules{byNamespace: map[string][]*Policy{}}
	var skips []Skip
	space, tunnels := namespaceLabels(s.Namespaces), newTunnels(s.Leases)
	for _, p := range s.Policies {
		c := compiler{kind: NetworkKind, policy: p.Namespace + "/" + p.Name, namespace: p.Namespace, space: space, tunnels: tunnels}
		subject, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			subject = labels.Everything()
			p.Refuse(fmt.Sprintf("podSelector: %v", err))
		}
		if p.Refused != "" {
			c.skips = append(c.skips, Skip{c.kind, c.policy, fmt.Errorf("%s: the policy is refused, it allows nothing", p.Refused)})
		}
		one := &Policy{Name: c.policy, UID: string(p.UID), Created: p.CreationTimestamp.Time, Spec: p.Spec, namespace: p.Namespace,
			subject: subject}
		if n := len(p.Spec.PolicyTypes); n > 2 {
			c.skip("policyTypes", fmt.Errorf("there are %d, want Ingress, Egress or both", n))
		}
		for _, d := range p.Spec.PolicyTypes {
			if !d.known() {
				c.skip("policyTypes", fmt.Errorf("%q is no direction, want Ingress or Egress", d))
			}
		}
		for i, in := range p.Spec.Ingress {
			one.ingress = append(one.ingress, c.rule(fmt.Sprintf("ingress[%d]", i), in.From, in.Ports))
		}
		for i, out := range p.Spec.Egress {
			one.egress = append(one.egress, c.rule(fmt.Sprintf("egress[%d]", i), out.To, out.Ports))
		}
		skips, r.blocks = append(skips, c.skips...), append(r.blocks, c.blocks...)
		r.byNamespace[p.Namespace] = append(r.byNamespace[p.Namespace], one)
	}
	for _, all := range r.byNamespace {
		slices.SortFunc(all, func(a, b *Policy) int { return cmp.Compare(a.Name, b.Name) })
	}
	return r, append(skips, r.addCluster(s, space)...)
}

// namespaceLabels returns a function from the names of namespaces to their labels, with the one that the API server sets.
func namespaceLabels(namespaces map[string]labels.Set) func(string) labels.Set {
	with := func(name string) labels.Set {
		return labels.Merge(namespaces[name], labels.Set{"kubernetes.io/metadata.name": name})
	}
	known := make(map[string]labels.Set, len(namespaces))
	for name := range namespaces {
		known[name] = with(name)
	}
	return func(name string) labels.Set {
		if all, ok := known[name]; ok {
			return all
		}
		return with(name)
	}
}

// isolates reports whether the pods that the policy selects are isolated for a direction. The types of a policy that has
// none are Ingress, and Egress if it has rules for it; one that is no direction stands for both.
func (p *Policy) isolates(d Direction) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return d == Ingress || len(p.Spec.Egress) > 0
	}
	return slices.ContainsFunc(p.Spec.PolicyTypes, func(t Direction) bool { return t == d || !t.known() })
}

func (p *Policy) name() string { return p.Name }

func (p *Policy) rules(d Direction) []rule {
	if d == Ingress {
		return p.ingress
	}
	return p.egress
}

// compiler reads one policy.
type compiler struct {
	kind, policy, namespace string
	space                   func(string) labels.Set
	tunnels                 tunnels
	blocks                  [][]addrRange // those of each ipBlock, without tunnels
	skips                   []Skip
}

func (c *compiler) skip(where string, err error) {
	c.skips = append(c.skips, Skip{c.kind, c.policy, fmt.Errorf("%s: %w", where, err)})
}

// selector is the selector, or one that selects nothing.
func (c *compiler) selector(where string, s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.skip(where, err)
		return labels.Nothing()
	}
	return selector
}

// rule reads one rule. No peers are all peers, and no ports all ports.
func (c *compiler) rule(where string, peers []Peer, ports []RulePort) rule {
	r := rule{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	for i, p := range ports {
		if err := p.check(); err != nil {
			c.skip(fmt.Sprintf("%s, port %d", where, i+1), err)
			continue
		}
		r.ports = append(r.ports, p)
	}
	for i, p := range peers {
		at := fmt.Sprintf("%s, peer %d", where, i+1)
		switch {
		case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
			c.skip(at, fmt.Errorf("it has an ipBlock and a selector, want one of them"))
		case p.IPBlock != nil:
			if block, ok := c.block(at, p.IPBlock); ok {
				r.peers = append(r.peers, block)
			}
		case p.PodSelector == nil && p.NamespaceSelector == nil:
			c.skip(at, fmt.Errorf("it is empty, want an ipBlock, a podSelector or a namespaceSelector"))
		default:
			r.peers = append(r.peers, c.pods(at, p))
		}
	}
	return r
}

// block reads an address range. One whose exception is unreadable allows nothing.
func (c *compiler) block(where string, b *IPBlock) (p peer, ok bool) {
	block, err := parseRange(b.CIDR)
	if err != nil {
		c.skip(where, fmt.Errorf("the cidr %q is not a range such as 10.1.0.0/16", b.CIDR))
		return p, false
	}
	var except []addrRange
	for _, text := range b.Except {
		x, err := parseRange(text)
		if err != nil {
			c.skip(where, fmt.Errorf("the exception %q is not a range such as 10.1.2.0/24", text))
			return p, false
		}
		if x.Bits() <= block.Bits() || !block.Contains(x.Addr()) {
			c.skip(where, fmt.Errorf("the exception %q is not a part of the cidr %q", text, b.CIDR))
			return p, false
		}
		except = append(except, rangeOf(x))
	}
	ranges := without([]addrRange{rangeOf(block)}, union(except))
	c.blocks = append(c.blocks, ranges)
	return peer{ranges: c.tunnels.through(ranges)}, true
}

// parseRange reads an address range, one of IPv4-mapped addresses as that of the IPv4 addresses, as the API server does.
// So are numbers that begin with zeros.
func parseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		_, sloppy, failed := netutils.ParseCIDRSloppy(text)
		if failed != nil {
			return p, failed
		}
		addr, _ := netip.AddrFromSlice(sloppy.IP)
		ones, _ := sloppy.Mask.Size()
		p, err = netip.PrefixFrom(addr, ones), nil
	}
	if bits := p.Bits() - 96; err == nil && p.Addr().Is4In6() && bits >= 0 {
		p = netip.PrefixFrom(p.Addr().Unmap(), bits)
	}
	return p.Masked(), err
}

// pods reads a peer that is some pods. Without a namespaceSelector they are in the policy's namespace, without a
// podSelector they are all.
func (c *compiler) pods(where string, from Peer) peer {
	p := peer{pods: labels.Everything(), namespaceLabels: c.space, namespace: c.namespace}
	if from.PodSelector != nil {
		p.pods = c.selector(where, from.PodSelector)
	}
	if from.NamespaceSelector != nil {
		p.namespaces = c.selector(where, from.NamespaceSelector)
	}
	return p
}

// matches reports whether the rule allows a connection with the peer.
func (r rule) matches(with Endpoint, f Flow) bool {
	return (r.anyPeer || slices.ContainsFunc(r.peers, func(p peer) bool { return p.matches(with) })) &&
		(r.anyPort || slices.ContainsFunc(r.ports, func(p RulePort) bool { return open(p, f) }))
}

// matches reports whether the end is one of the peer's.
func (p peer) matches(e Endpoint) bool {
	if p.pods == nil {
		return within(p.ranges, e.Addr)
	}
	return e.Selectable() && p.pods.Matches(e.Pod.Labels) && p.hasNamespace(e.Pod.Namespace)
}

// hasNamespace reports whether pods of a namespace can be the peer.
func (p peer) hasNamespace(name string) bool {
	if p.namespaces == nil {
		return name == p.namespace
	}
	return p.namespaces.Matches(p.namespaceLabels(name))
}

// open reports whether a port of a rule is the one that the connection goes to. A name is one of the pod that is reached.
func open(p RulePort, f Flow) bool {
	switch {
	case p.protocol() != f.Protocol:
		return false
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return f.To.Selectable() && slices.Contains(f.To.Pod.Ports, Port{p.Port.StrVal, f.Protocol, f.Port})
	}
	first, last, ok := p.span()
	return ok && first <= f.Port && f.Port <= last
}

// check returns what an API server would refuse.
func (p RulePort) check() error {
	numbered := p.Port != nil && p.Port.Type == intstr.Int
	switch {
	case protocolNumbers[p.protocol()] == 0:
		return fmt.Errorf("its protocol is %q, want TCP, UDP or SCTP", p.protocol())
	case p.Port == nil && p.EndPort != nil:
		return errors.New("it has an endPort and no port, want both")
	case p.Port == nil:
		return nil
	case !numbered && p.EndPort != nil:
		return fmt.Errorf("its port %q is a name, want a number with an endPort", p.Port.StrVal)
	case !numbered && len(validation.IsValidPortName(p.Port.StrVal)) > 0:
		return fmt.Errorf("its port %q is no port's name", p.Port.StrVal)
	case numbered && (p.Port.IntVal < 1 || p.Port.IntVal > 65535):
		return fmt.Errorf("its port is %d, want a number from 1 to 65535", p.Port.IntVal)
	case p.EndPort != nil && (*p.EndPort < p.Port.IntVal || *p.EndPort > 65535):
		return fmt.Errorf("its endPort is %d, want a number from its port %d to 65535", *p.EndPort, p.Port.IntVal)
	}
	return nil
}

func (p RulePort) protocol() Protocol {
	if p.Protocol == nil {
		return TCP
	}
	return *p.Protocol
}

// span returns the numbers from Port to EndPort, as far as they are ports. It is not ok if none is.
func (p RulePort) span() (first, last uint16, ok bool) {
	from, to := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		to = *p.EndPort
	}
	from, to = max(from, 1), min(to, 65535)
	return uint16(from), uint16(to), from <= to //nolint:gosec // they are clamped above
}

// String is the same for peers that are the same pods.
func (p peer) String() string {
	if p.namespaces == nil {
		return "namespace " + p.namespace + ", pods " + p.pods.String()
	}
	return "namespaces " + p.namespaces.String() + ", pods " + p.pods.String()
}
