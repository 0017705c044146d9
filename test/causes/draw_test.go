package causes

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// draw makes the choices of one cause.
type draw struct {
	*rand.Rand
	world *world
	seen  coverage
}

// coverage is how often each choice was made, by where and what; a choice that was possible and not made has zero.
type coverage map[string]map[string]int

func (c coverage) note(where string, options []string, chosen int) {
	if c == nil {
		return
	}
	if c[where] == nil {
		c[where] = map[string]int{}
	}
	for i, o := range options {
		if i == chosen {
			c[where][o]++
		} else {
			c[where][o] += 0
		}
	}
}

// pick chooses one of some words.
func (d *draw) pick(where string, options ...string) string {
	i := d.IntN(len(options))
	d.seen.note(where, options, i)
	return options[i]
}

// chance reports true so often of a hundred times.
func (d *draw) chance(percent int) bool { return d.IntN(100) < percent }

// option is a production with a name.
type option[T any] struct {
	name string
	make T
}

// choose chooses a production.
func choose[T any](d *draw, where string, options []option[T]) T {
	names := make([]string, len(options))
	for i, o := range options {
		names[i] = o.name
	}
	i := d.IntN(len(options))
	d.seen.note(where, names, i)
	return options[i].make
}

// kinds are the kinds of causes. Each is drawn as often as any other.
var kinds = []option[func(*draw) *cause]{
	{"nftables", drawNft},
	{"iptables", drawIptables},
	{"iptables-legacy", drawIptablesLegacy},
	{"ebtables and arptables", drawEbtables},
	{"policy rule", drawRule},
	{"route", drawRoute},
	{"neighbour", drawNeighbour},
	{"fdb", drawFDB},
	{"link", drawLink},
	{"address", drawAddress},
	{"bridge port", drawPort},
	{"bridge", drawBridge},
	{"sysctl", drawSysctl},
	{"qdisc", drawQdisc},
	{"xfrm", drawXFRM},
}

// newCause draws a cause, which depends on the seed, its number and the world only.
func newCause(seed uint64, number int, w *world, seen coverage) *cause {
	d := &draw{Rand: rand.New(rand.NewPCG(seed, uint64(number))), world: w, seen: seen}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	i := d.IntN(len(kinds))
	d.seen.note("kind", names, i)
	c := kinds[i].make(d)
	c.number, c.kind = number, kinds[i].name
	return c
}

// place is a namespace that can be injured.
type place struct {
	name string
	node *node // nil: underlay
	pod  *pod  // nil: the node itself
}

// somewhere chooses a place: a node as often as a pod, and the underlay more seldom.
func (d *draw) somewhere() place {
	switch d.pick("place", "node", "node", "pod", "pod", "underlay") {
	case "node":
		return d.aNode()
	case "pod":
		return d.aPod()
	}
	return place{name: underlay}
}

func (d *draw) aNode() place {
	n := &d.world.nodes[d.IntN(len(d.world.nodes))]
	return place{name: n.name, node: n}
}

func (d *draw) aPod() place {
	n := &d.world.nodes[d.IntN(len(d.world.nodes))]
	p := &n.pods[d.IntN(len(n.pods))]
	return place{name: p.id, node: n, pod: p}
}

// withBridge chooses a place that has a bridge.
func (d *draw) withBridge() place {
	if d.pick("place with a bridge", "node", "node", "node", "underlay") == "node" {
		return d.aNode()
	}
	return place{name: underlay}
}

// anyNode chooses a node.
func (d *draw) anyNode() *node { return &d.world.nodes[d.IntN(len(d.world.nodes))] }

// anyPod chooses a pod.
func (d *draw) anyPod() *pod {
	n := d.anyNode()
	return &n.pods[d.IntN(len(n.pods))]
}

// family chooses an address family of the lab.
func (d *draw) family() family { return d.world.families[d.IntN(len(d.world.families))] }

// peer chooses another node.
func (d *draw) peer(n *node) *node {
	i := d.IntN(len(d.world.nodes) - 1)
	if d.world.nodes[i].name >= n.name {
		i++
	}
	return &d.world.nodes[i]
}

// devices are those of the place that packets pass.
func (d *draw) devices(p place) []string {
	switch {
	case p.pod != nil:
		return []string{podDevice}
	case p.node != nil:
		devices := []string{uplink, bridge}
		for _, f := range d.world.families {
			if v := p.node.vtep[f]; v != "" {
				devices = append(devices, v)
			}
		}
		return append(devices, p.node.ports()...)
	}
	devices := []string{router}
	for _, n := range d.world.nodes {
		devices = append(devices, n.name)
	}
	return devices
}

// device chooses one of them.
func (d *draw) device(p place) string {
	all := d.devices(p)
	return all[d.IntN(len(all))]
}

// mac is one that nobody has.
func (d *draw) mac() string {
	return fmt.Sprintf("02:00:5e:%02x:%02x:%02x", d.IntN(256), d.IntN(256), d.IntN(256))
}

// words joins those that are not empty.
func words(w ...string) string { return strings.Join(strings.Fields(strings.Join(w, " ")), " ") }
