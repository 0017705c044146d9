package policy

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/netstate"
)

// groups are the sets of a family that chains look into, by the namespaces whose pods can be in them.
type groups struct {
	pods        map[string][]peer
	ports       map[string][]namedPort
	byNamespace map[string][]group
}

// group is what a set has of one namespace's pods: those that one of the selectors selects.
type group struct {
	set  string
	pods []labels.Selector
}

func newGroups(family netstate.Family, chains map[string]chain) *groups {
	g := &groups{pods: map[string][]peer{}, ports: map[string][]namedPort{}, byNamespace: map[string][]group{}}
	for _, c := range chains {
		if c.family != family {
			continue
		}
		maps.Copy(g.pods, c.pods)
		maps.Copy(g.ports, c.ports)
	}
	return g
}

// elements returns what a pod's address is in.
func (g *groups) elements(host netip.Prefix, p *Pod) (all []netstate.Object) {
	for _, one := range g.of(p.Namespace) {
		if slices.ContainsFunc(one.pods, func(s labels.Selector) bool { return s.Matches(p.Labels) }) {
			all = append(all, netstate.Element{Set: one.set, Prefix: host})
		}
	}
	for name, wanted := range g.ports {
		for _, port := range p.Ports {
			if slices.Contains(wanted, namedPort{port.Name, port.Protocol}) {
				all = append(all, netstate.Element{Set: name, Prefix: host, Protocol: protocolNumbers[port.Protocol],
					Port: port.Number})
			}
		}
	}
	return all
}

// of returns the sets in which pods of a namespace can be.
func (g *groups) of(namespace string) []group {
	all, known := g.byNamespace[namespace]
	if !known {
		for name, peers := range g.pods {
			one := group{set: name}
			for _, p := range peers {
				if p.hasNamespace(namespace) {
					one.pods = append(one.pods, p.pods)
				}
			}
			if len(one.pods) > 0 {
				all = append(all, one)
			}
		}
		g.byNamespace[namespace] = all
	}
	return all
}
