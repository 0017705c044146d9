package policy

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// owners are the pods that claim each address, the one that has it first: the newest.
type owners map[netip.Addr][]*Pod

func newOwners(pods []*Pod) owners {
	o := make(owners, len(pods))
	for _, p := range pods {
		for _, a := range p.Addrs {
			o.move(a, nil, p)
		}
	}
	return o
}

// move takes the claim of was to an address away, and adds that of now. Both may be nil.
func (o owners) move(a netip.Addr, was, now *Pod) {
	claims := o[a]
	for _, gone := range []*Pod{was, now} { // now may be there already: a snapshot may be ahead of its changes
		if gone != nil {
			claims = slices.DeleteFunc(claims, func(p *Pod) bool { return p.UID == gone.UID && p.String() == gone.String() })
		}
	}
	if now != nil && slices.Contains(now.Addrs, a) && (Endpoint{Addr: a, Pod: now}).Selectable() {
		claims = append(claims, now)
		slices.SortStableFunc(claims, func(a, b *Pod) int {
			switch {
			case a.Newer(b):
				return -1
			case b.Newer(a):
				return 1
			}
			return 0
		})
	}
	if o[a] = claims; len(claims) == 0 {
		delete(o, a)
	}
}

// of returns the pod that has an address; nil if none has.
func (o owners) of(a netip.Addr) *Pod {
	if len(o[a]) == 0 {
		return nil
	}
	return o[a][0]
}

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
