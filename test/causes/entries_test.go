package causes

import (
	"fmt"
	"strings"
)

// neighbour is whom a place talks to on one of its links.
type neighbour struct{ addr, device, mac string }

// drawNeighbour draws an entry of the neighbour table.
func drawNeighbour(d *draw) *cause {
	p, f := d.somewhere(), d.family()
	n := d.neighbour(p, f)
	ip := "ip " + f.flag() + " neigh "
	c := &cause{place: p.name, tokens: one(n.addr, n.device)}
	old := ip + "show " + n.addr + " dev " + n.device + " nud permanent | sed 's/PERMANENT/nud permanent/'"
	undo := ip + "del " + n.addr + " dev " + n.device +
		`; [ -z "$OLD" ] || ` + ip + "replace $OLD dev " + n.device
	alter := func(what string) step {
		return step{in: p.name, before: old, do: ip + "replace " + n.addr + " dev " + n.device + " " + what, undo: undo}
	}
	switch d.pick("neighbour's state", "wrong", "wrong", "another's", "noarp", "right", "failed", "proxy", "deleted",
		"stale") {
	case "wrong":
		c.steps = []step{alter("lladdr " + d.mac() + " nud permanent")}
	case "another's":
		c.steps = []step{alter("lladdr " + d.anyPod().mac + " nud permanent")}
	case "noarp":
		c.steps = []step{alter("lladdr " + d.mac() + " nud noarp")}
	case "right":
		c.steps = []step{alter("lladdr " + n.mac + " nud permanent")}
	case "failed":
		c.steps = []step{alter("nud failed")}
	case "stale":
		c.steps = []step{alter("lladdr " + d.mac() + " nud stale")}
	case "proxy":
		whom := d.anyPod().addr[f].String()
		c.steps = []step{add(p.name, ip, "proxy "+whom+" dev "+n.device)}
		c.tokens = one(whom, n.device)
	case "deleted":
		c.steps = []step{{in: p.name, before: old, do: ip + "del " + n.addr + " dev " + n.device, undo: undo}}
	}
	return c
}

// neighbour chooses one of those that packets are sent to.
func (d *draw) neighbour(p place, f family) neighbour {
	sibling := func(device string) neighbour {
		s := p.node.pods[d.IntN(len(p.node.pods))]
		return neighbour{s.addr[f].String(), device, s.mac}
	}
	switch {
	case p.node == nil:
		n := d.anyNode()
		return neighbour{n.addr[f].String(), router, n.mac[uplink]}
	case p.pod != nil && d.pick("pod's neighbour", "gateway", "gateway", "sibling") == "sibling":
		return sibling(podDevice)
	case p.pod != nil:
		return neighbour{p.node.gateway[f].String(), podDevice, p.node.mac[bridge]}
	}
	peer := d.peer(p.node)
	switch who := d.pick("node's neighbour", "pod", "pod", "peer", "vtep"); {
	case who == "pod":
		return sibling(bridge)
	case who == "vtep" && p.node.vtep[f] != "":
		return neighbour{peer.subnet[f].Addr().String(), p.node.vtep[f], peer.mac[p.node.vtep[f]]}
	}
	return neighbour{peer.addr[f].String(), uplink, peer.mac[uplink]}
}

// drawFDB draws an entry of a forwarding database: of the overlay's device, or of a bridge.
func drawFDB(d *draw) *cause {
	p, f := d.withBridge(), d.family()
	if p.node != nil && p.node.vtep[f] != "" && d.pick("database", "overlay", "bridge") == "overlay" {
		return d.overlayFDB(p, f)
	}
	mac, device := "", ""
	if p.node != nil {
		mac = p.node.pods[d.IntN(2)].mac
		device = p.node.pods[d.IntN(2)].port
	} else {
		mac = d.anyNode().mac[uplink]
		device = d.anyNode().name
	}
	c := &cause{place: p.name, tokens: one(mac, device)}
	kind := d.pick("bridge entry", "master static", "master permanent", "master static sticky", "self permanent")
	c.steps = []step{{in: p.name, do: fmt.Sprintf("bridge fdb replace %s dev %s %s", mac, device, kind),
		undo: fmt.Sprintf("bridge fdb del %s dev %s %s", mac, device, kind[:6])}}
	if kind == "master static" { // it follows the frames to another port
		c.steps[0].undo = "for port in " + strings.Join(d.portsOf(p), " ") + "; do bridge fdb del " + mac +
			" dev $port master 2>&-; done; true"
	}
	return c
}

// portsOf are the ports of a place's bridge.
func (d *draw) portsOf(p place) []string {
	if p.node != nil {
		return p.node.ports()
	}
	var names []string
	for _, n := range d.world.nodes {
		names = append(names, n.name)
	}
	return names
}

// overlayFDB alters where packets for a peer's overlay device are sent.
func (d *draw) overlayFDB(p place, f family) *cause {
	peer, device := d.peer(p.node), p.node.vtep[f]
	mac := peer.mac[device]
	right := fmt.Sprintf("%s dev %s dst %s self permanent", mac, device, peer.addr[f])
	c := &cause{place: p.name, tokens: one(mac, device)}
	switch d.pick("overlay entry", "wrong", "deleted", "second") {
	case "wrong":
		nobody := map[family]string{ip4: "192.168.33.77", ip6: "fd33::77"}[f]
		c.steps = []step{{in: p.name, do: fmt.Sprintf("bridge fdb replace %s dev %s dst %s self permanent", mac,
			device, nobody),
			undo: "bridge fdb replace " + right}}
	case "deleted":
		c.steps = []step{{in: p.name, do: "bridge fdb del " + right, undo: "bridge fdb replace " + right}}
	case "second":
		other := d.mac()
		c.tokens = one(other, device)
		c.steps = []step{add(p.name, "bridge fdb", fmt.Sprintf("%s dev %s dst %s self permanent", other, device,
			peer.addr[f]))}
	}
	return c
}
