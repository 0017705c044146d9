package policy

import "fmt"

// Describe says what a policy's rules do in a direction, a line for each rule, in their order.
func (p *ClusterPolicy) Describe(d Direction) (lines []string) {
	if d == Ingress {
		for _, r := range p.Spec.Ingress {
			peers := list(mapped(r.From, ClusterPeer.describe))
			lines = append(lines, describeClusterRule(r.Action, r.Protocols)+" from "+peers)
		}
		return lines
	}
	for _, r := range p.Spec.Egress {
		peers := list(mapped(r.To, ClusterEgressPeer.describe))
		lines = append(lines, describeClusterRule(r.Action, r.Protocols)+" to "+peers)
	}
	return lines
}

func describeClusterRule(a Action, protocols []ClusterProtocol) string {
	verb, known := verbs[a]
	if !known {
		verb = fmt.Sprintf("does %q with", a)
	}
	if len(protocols) == 0 {
		return verb + " everything"
	}
	return verb + " " + list(mapped(protocols, ClusterProtocol.describe))
}

func (p ClusterProtocol) describe() string {
	ports, err := p.ports()
	switch {
	case err != nil:
		return "unknown ports"
	case p.DestinationNamedPort != "":
		return "port " + p.DestinationNamedPort
	}
	return describe(ports)
}

func (p ClusterPeer) describe() string {
	switch {
	case p.Namespaces != nil:
		return describePods(p.Namespaces, nil)
	case p.Pods != nil:
		return describePods(&p.Pods.NamespaceSelector, &p.Pods.PodSelector)
	}
	return "unknown peers"
}

func (p ClusterEgressPeer) describe() string {
	switch {
	case p.Nodes != nil:
		return selected("nodes", p.Nodes)
	case len(p.Networks) > 0:
		return list(p.Networks)
	case len(p.DomainNames) > 0:
		return list(p.DomainNames) + " (domain names are not supported)"
	}
	return p.ClusterPeer.describe()
}
