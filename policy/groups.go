package policy

import (
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// groups are the sets of a family that chains look into, by the namespaces whose pods can be in them.
type groups struct {
	pods        map[string]peer
	ports       map[string]namedPort
	byNamespace map[string][]string // names of pods
}

func newGroups(family netstate.Family, chains map[string]chain) *groups {
	g := &groups{pods: map[string]peer{}, ports: map[string]namedPort{}, byNamespace: map[string][]string{}}
	for _, c := range chains {
		if c.family != family {
			continue
		}
		for name, p := range c.pods {
			g.pods[name] = p
		}
		for name, p := range c.ports {
			g.ports[name] = p
		}
	}
	return g
}

// elements returns what a pod's address is in.
func (g *groups) elements(host netip.Prefix, p *Pod) (all []netstate.Object) {
	for _, name := range g.of(p.Namespace) {
		if g.pods[name].pods.Matches(p.Labels) {
			all = append(all, netstate.Element{Set: name, Prefix: host})
		}
	}
	for name, want := range g.ports {
		for _, port := range p.Ports {
			if port.Name == want.name && port.Protocol == want.protocol {
				all = append(all, netstate.Element{Set: name, Prefix: host, Protocol: protocolNumbers[port.Protocol],
					Port: port.Number})
			}
		}
	}
	return all
}

// of returns the names of the sets in which pods of a namespace can be.
func (g *groups) of(namespace string) []string {
	names, known := g.byNamespace[namespace]
	if !known {
		for name, p := range g.pods {
			if p.hasNamespace(namespace) {
				names = append(names, name)
			}
		}
		g.byNamespace[namespace] = names
	}
	return names
}
