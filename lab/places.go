package lab

import (
	"strings"

	"github.com/twill-net/twill/internal/host"
)

// Place is a host of the lab with the name that people give it.
type Place struct {
	Name string // node1, node1/pod1, node1/nat, underlay, outside
	Host host.Host
}

// Places are all hosts of the lab: the nodes, each followed by its routers and pods, then the underlay and outside.
func (l *Lab) Places() []Place {
	var places []Place
	for _, n := range l.Nodes() {
		places = append(places, Place{n.Name, n.Host})
		for _, r := range n.Routers() {
			_, name, _ := strings.Cut(r.Name, l.spec.Name+"-"+n.Name+"-")
			places = append(places, Place{n.Name + "/" + name, r})
		}
		for _, p := range n.Pods() {
			places = append(places, Place{p.ID(), p.Host})
		}
	}
	return append(places, Place{underlayName, l.underlay}, Place{outsideName, l.outside})
}
