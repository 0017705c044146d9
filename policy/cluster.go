package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterPolicy is one ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name            string
	Spec            ClusterSpec
	subject         peer
	ingress, egress []clusterRule
}

// clusterRule decides about the connections that it matches.
type clusterRule struct {
	rule
	name   string
	action Action
}

func (p *ClusterPolicy) name() string { return p.Name }

func (p *ClusterPolicy) rules(d Direction) []clusterRule {
	if d == Ingress {
		return p.ingress
	}
	return p.egress
}

// selecting are those of the policies that have rules for an end's connections of a direction.
func selecting(policies []*ClusterPolicy, d Direction, subject Endpoint) (all []*ClusterPolicy) {
	for _, p := range policies {
		if len(p.rules(d)) > 0 && p.subject.matches(subject) {
			all = append(all, p)
		}
	}
	return all
}

// decide returns what the first rule that matches decides; nil if none matches, or it passes the connection on.
func decide(policies []*ClusterPolicy, d Direction, peer Endpoint, f Flow) *Decision {
	for _, p := range policies {
		for _, r := range p.rules(d) {
			switch {
			case !r.matches(peer, f):
			case r.action == Pass:
				return nil
			default:
				return &Decision{Policy: p.Name, Tier: p.Spec.Tier, Rule: r.name, Action: r.action}
			}
		}
	}
	return nil
}

// Check returns why nobody can say whom the policy is about, or when its rules are asked. What is wrong in a rule denies.
func (s ClusterSpec) Check() error {
	c := clusterCompiler{}
	c.pods("subject", s.Subject)
	switch {
	case s.Tier != Admin && s.Tier != Baseline:
		return fmt.Errorf("there is no tier %q, want Admin or Baseline", s.Tier)
	case len(c.skips) > 0:
		return c.skips[0].Err
	}
	return nil
}

// addCluster reads the ClusterNetworkPolicies of a snapshot.
func (r *Rules) addCluster(s Snapshot, space func(string) labels.Set) (skips []Skip) {
	for _, p := range s.ClusterPolicies {
		c := clusterCompiler{compiler{kind: ClusterKind, policy: p.Name, space: space}, s.Nodes, s.NoNodes}
		one := c.policy(p)
		switch p.Spec.Tier {
		case Admin:
			r.admin = append(r.admin, one)
		case Baseline:
			r.baseline = append(r.baseline, one)
		default:
			c.skip("tier", fmt.Errorf("there is no tier %q, want Admin or Baseline: the policy is left out", p.Spec.Tier))
		}
		skips = append(skips, c.skips...)
	}
	for _, tier := range [][]*ClusterPolicy{r.admin, r.baseline} {
		slices.SortFunc(tier, func(a, b *ClusterPolicy) int {
			return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
		})
	}
	return skips
}

// replaceCluster reads the ClusterNetworkPolicies of a snapshot in place of those before.
func (r *Rules) replaceCluster(s Snapshot) []Skip {
	r.admin, r.baseline = nil, nil
	return r.addCluster(s, namespaceLabels(s.Namespaces))
}

// clusterCompiler reads one ClusterNetworkPolicy. What cannot be understood may be something of a later version of the
// API, which says what to do then: a rule that accepts matches nothing, any other rule denies everything.
type clusterCompiler struct {
	compiler

	nodes   []Node
	noNodes bool
}

func (c *clusterCompiler) policy(p ClusterNetworkPolicy) *ClusterPolicy {
	one := &ClusterPolicy{Name: p.Name, Spec: p.Spec}
	one.subject, _ = c.pods("subject", p.Spec.Subject)
	for i, in := range p.Spec.Ingress {
		where := fmt.Sprintf("ingress[%d]", i)
		var peers []ClusterEgressPeer
		for _, from := range in.From {
			peers = append(peers, ClusterEgressPeer{ClusterPeer: from})
		}
		one.ingress = append(one.ingress, c.rule(where, in.Name, in.Action, peers, in.Protocols))
	}
	for i, out := range p.Spec.Egress {
		one.egress = append(one.egress, c.rule(fmt.Sprintf("egress[%d]", i), out.Name, out.Action, out.To, out.Protocols))
	}
	return one
}

// rule reads one rule. No protocols are all ports.
func (c *clusterCompiler) rule(
	where, name string, action Action, peers []ClusterEgressPeer, protocols []ClusterProtocol,
) clusterRule {
	r := clusterRule{rule{anyPort: len(protocols) == 0}, cmp.Or(name, where), action}
	understood := true
	if !slices.Contains([]Action{Accept, Deny, Pass}, action) {
		c.skip(where, fmt.Errorf("there is no action %q, want Accept, Deny or Pass: the rule denies everything", action))
		understood = false
	}
	if len(peers) == 0 {
		c.skip(where, errors.New("it has no peers, want at least one"))
		understood = false
	}
	for i, p := range peers {
		one, ok := c.peer(fmt.Sprintf("%s, peer %d", where, i+1), p)
		if domains := len(p.DomainNames) > 0 && action == Accept; !ok && !domains {
			understood = false
		}
		r.peers = append(r.peers, one...)
	}
	for i, p := range protocols {
		ports, err := p.ports()
		if err != nil {
			c.skip(fmt.Sprintf("%s, protocol %d", where, i+1), err)
			understood = false
		}
		r.ports = append(r.ports, ports...)
	}
	switch {
	case understood:
		return r
	case action == Accept:
		r.rule = rule{}
	default:
		r.rule, r.action = rule{anyPeer: true, anyPort: true}, Deny
	}
	return r
}

// peer reads a peer. It is not ok if that cannot be understood.
func (c *clusterCompiler) peer(where string, p ClusterEgressPeer) (all []peer, ok bool) {
	switch fields := p.fields(); {
	case fields != 1:
		c.skip(where, fmt.Errorf("it has %d known fields, want one: namespaces, pods, nodes or networks", fields))
		return nil, false
	case p.Namespaces != nil || p.Pods != nil:
		one, ok := c.pods(where, p.ClusterPeer)
		return []peer{one}, ok
	case p.Nodes != nil:
		one, ok := c.nodePeer(where, p.Nodes)
		return []peer{one}, ok
	case len(p.Networks) > 0:
		one, ok := c.networks(where, p.Networks)
		return []peer{one}, ok
	}
	c.skip(where, errors.New("domainNames are not supported"))
	return nil, false
}

// fields returns how many of the fields are set, of which one should be.
func (p ClusterEgressPeer) fields() (n int) {
	for _, set := range []bool{
		p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0,
	} {
		if set {
			n++
		}
	}
	return n
}

// pods reads a subject, or a peer that is some pods. It is not ok, and selects nothing, if that cannot be understood.
func (c *clusterCompiler) pods(where string, from ClusterPeer) (p peer, ok bool) {
	before := len(c.skips)
	p = peer{namespaces: labels.Nothing(), pods: labels.Nothing(), namespaceLabels: c.space}
	switch {
	case (from.Namespaces == nil) == (from.Pods == nil):
		c.skip(where, errors.New("want either namespaces or pods"))
	case from.Namespaces != nil:
		p.namespaces, p.pods = c.selector(where, from.Namespaces), labels.Everything()
	default:
		p.namespaces, p.pods = c.selector(where, &from.Pods.NamespaceSelector), c.selector(where, &from.Pods.PodSelector)
	}
	return p, len(c.skips) == before
}

// nodePeer reads a peer that is the addresses of some nodes.
func (c *clusterCompiler) nodePeer(where string, s *metav1.LabelSelector) (p peer, ok bool) {
	before := len(c.skips)
	selector := c.selector(where, s)
	if c.noNodes {
		c.skip(where, errors.New("the cluster's Nodes cannot be read yet, want the right to list and watch them"))
	}
	for _, n := range c.nodes {
		if selector.Matches(n.Labels) {
			for _, a := range n.Addrs {
				p.ranges = append(p.ranges, hostRange(a))
			}
		}
	}
	p.ranges = union(p.ranges)
	return p, len(c.skips) == before
}

// networks reads a peer that is address ranges.
func (c *clusterCompiler) networks(where string, texts []string) (p peer, ok bool) {
	for _, text := range texts {
		block, err := parseRange(text)
		if err != nil {
			c.skip(where, fmt.Errorf("the network %q is not a range such as 10.1.0.0/16", text))
			return peer{}, false
		}
		p.ranges = append(p.ranges, rangeOf(block))
	}
	p.ranges = union(p.ranges)
	return p, true
}

// disjoint returns the ranges without those that are part of others, in order.
func disjoint(all []netip.Prefix) (kept []netip.Prefix) {
	slices.SortFunc(all, netip.Prefix.Compare) // a range comes before its parts
	for _, p := range all {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// ports returns the ports that are meant; a name is a port's of any protocol.
func (p ClusterProtocol) ports() (all []RulePort, err error) {
	n := 0
	for _, one := range []struct {
		Protocol
		*ClusterPorts
	}{{TCP, p.TCP}, {UDP, p.UDP}, {SCTP, p.SCTP}} {
		if one.ClusterPorts == nil {
			continue
		}
		n++
		port, err := one.DestinationPort.port(one.Protocol)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.Protocol, err)
		}
		all = append(all, port)
	}
	if p.DestinationNamedPort != "" {
		n++
		name := intstr.FromString(p.DestinationNamedPort)
		for _, protocol := range []Protocol{TCP, UDP, SCTP} {
			all = append(all, RulePort{Protocol: &protocol, Port: &name})
		}
	}
	if n != 1 {
		return nil, fmt.Errorf("it has %d known fields, want one: tcp, udp, sctp or destinationNamedPort", n)
	}
	return all, nil
}

// port reads a number or a range.
func (p *ClusterPort) port(protocol Protocol) (RulePort, error) {
	const most = 65535
	switch {
	case p == nil || (p.Number == 0) == (p.Range == nil):
		return RulePort{}, errors.New("want a destinationPort with either a number or a range")
	case p.Range == nil && (p.Number < 1 || p.Number > most):
		return RulePort{}, fmt.Errorf("the port %d is not from 1 to %d", p.Number, most)
	case p.Range == nil:
		number := intstr.FromInt32(p.Number)
		return RulePort{Protocol: &protocol, Port: &number}, nil
	case p.Range.Start < 1 || p.Range.Start > p.Range.End || p.Range.End > most:
		return RulePort{}, fmt.Errorf("%d to %d is no range from 1 to %d", p.Range.Start, p.Range.End, most)
	}
	first := intstr.FromInt32(p.Range.Start)
	return RulePort{Protocol: &protocol, Port: &first, EndPort: &p.Range.End}, nil
}
