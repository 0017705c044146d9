package backend

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// guards keep pods from sending what only nodes send each other: whoever wraps a packet as a peer does
// speaks for any pod.
// No pod has business with such packets at an address of this node, by whatever way they come. Those that it sends
// elsewhere may be for another node, and nobody could tell there whose they were: they are masqueraded. Between pods
// they pass: a pod can be a node of a network of its own. Who is a pod, the devices say and not the network's range,
// in which nodes may have their addresses too.
func guards(cfg FirewallConfig, s FirewallStack) []netstate.Object {
	var objects []netstate.Object
	add := func(role netstate.Role, rules []netstate.Rule) {
		if len(rules) > 0 {
			c := netstate.Chain{Mode: cfg.Mode, Family: netstate.FamilyOf(s.Cluster.Addr()), Role: role}
			objects = append(objects, withRules(c, rules))
		}
	}
	add(netstate.GuardInput, guardInput(cfg, s))
	add(netstate.GuardForward, s.fit(cfg, guardForward))
	if cfg.Mode == netstate.NFTables {
		add(netstate.GuardSource, guardSource(cfg, s))
	}
	return objects
}

// podDevices returns the devices by which pods' packets come to this node or leave it for other pods.
func podDevices(cfg FirewallConfig, s FirewallStack) (devices []string) {
	if cfg.Bridge != "" {
		devices = append(devices, cfg.Bridge)
	}
	return append(devices, s.Overlays...)
}

func guardInput(cfg FirewallConfig, s FirewallStack) (rules []netstate.Rule) {
	for _, packet := range s.Guarded {
		for _, dev := range podDevices(cfg, s) {
			rules = append(rules, netstate.Rule{In: dev, Packet: packet, Verdict: netstate.Drop})
		}
		if cfg.Bridge == "" {
			rules = append(rules, netstate.Rule{Src: s.Pod, Packet: packet, Verdict: netstate.Drop})
		}
		// No node has its address there, and what comes plain from another node's pods comes by any device.
		rules = append(rules, netstate.Rule{Dst: s.Pod, Packet: packet, Verdict: netstate.Drop})
	}
	return append(rules, forged(cfg, s)...)
}

// guardSource drops what comes by another device than pods' packets do, and says that it is from a pod: packets between
// nodes, or whatever where the overlay is strict.
func guardSource(cfg FirewallConfig, s FirewallStack) (rules []netstate.Rule) {
	devices := podDevices(cfg, s)
	for _, dev := range devices {
		rules = append(rules, netstate.Rule{In: dev, Verdict: netstate.Return})
	}
	packets := s.Guarded
	if s.Strict {
		packets = []netstate.Transport{{}}
	}
	for _, packet := range packets {
		for _, dev := range devices {
			rules = append(rules, netstate.Rule{Packet: packet, Back: dev, Verdict: netstate.Drop})
		}
	}
	return rules
}

// forged does for a strict overlay what guardSource does, for iptables, which cannot ask where the way back leads: by the
// network's range.
func forged(cfg FirewallConfig, s FirewallStack) (rules []netstate.Rule) {
	if !s.Strict || cfg.Mode != netstate.IPTables {
		return nil
	}
	for _, dev := range s.Outside {
		for _, p := range s.Inside {
			rules = append(rules, netstate.Rule{In: dev, Src: p, Verdict: netstate.Return})
		}
		rules = append(rules, netstate.Rule{In: dev, Src: s.Cluster, Verdict: netstate.Drop})
	}
	return rules
}

// guardForward drops what leaves by another device than pods' packets do: packets between nodes, and where the overlay is
// strict whatever is for the network of pods.
func guardForward(cfg FirewallConfig, s FirewallStack) (rules []netstate.Rule) {
	rules = forged(cfg, s)
	for _, packet := range s.Guarded {
		rules = append(rules, wrapped(cfg, s, packet)...)
	}
	if !s.Strict {
		return rules
	}
	from := netstate.Rule{In: cfg.Bridge}
	if cfg.Bridge == "" {
		from.Src = s.Pod
	}
	pass := func(r netstate.Rule) {
		r.In, r.Src, r.Verdict = from.In, from.Src, netstate.Return
		rules = append(rules, r)
	}
	for _, own := range s.pods() {
		pass(netstate.Rule{Dst: own})
	}
	for _, dev := range s.Overlays {
		pass(netstate.Rule{Out: dev})
	}
	for _, p := range s.Inside {
		pass(netstate.Rule{Dst: p})
	}
	from.Dst, from.Verdict = s.Cluster, netstate.Drop
	return append(rules, from)
}

// wrapped drops packets between nodes of one form that pods send. Where some of the nodes' packets leave plain, that is by the device
// of pods' packets too: there the network's range counts, without what is in it and no pod.
func wrapped(cfg FirewallConfig, s FirewallStack, packet netstate.Transport) (rules []netstate.Rule) {
	clusters := cfg.clusters(s)
	for _, c := range clusters[1:] { // how packets get there is not ours to say
		rules = append(rules, netstate.Rule{Dst: c, Packet: packet, Verdict: netstate.Return})
	}
	from := []netstate.Rule{{Src: s.Pod}}
	for _, c := range clusters[1:] {
		from = append(from, netstate.Rule{Src: c})
	}
	if cfg.Bridge != "" {
		from = append(from, netstate.Rule{In: cfg.Bridge})
	}
	drop := func(to netstate.Rule) {
		for _, r := range from {
			r.Packet, r.Dst, r.NotDst, r.Verdict = packet, to.Dst, to.NotDst, netstate.Drop
			rules = append(rules, r)
		}
	}
	if s.Plain {
		for _, p := range s.Inside {
			drop(netstate.Rule{Dst: p})
		}
		drop(netstate.Rule{NotDst: s.Cluster})
		return rules
	}
	rules = append(rules, netstate.Rule{Dst: s.Pod, Packet: packet, Verdict: netstate.Return})
	for _, dev := range s.Overlays {
		rules = append(rules, netstate.Rule{Out: dev, Packet: packet, Verdict: netstate.Return})
	}
	drop(netstate.Rule{})
	return rules
}

// hasPods reports whether a node has its subnet, or a part of it, in a network.
func hasPods(network netip.Prefix, snap subnet.Snapshot) bool {
	overlaps := func(l subnet.Lease) bool {
		return slices.ContainsFunc(l.Stacks, func(s subnet.Stack) bool { return s.Subnet.Overlaps(network) })
	}
	return overlaps(snap.Local) || slices.ContainsFunc(snap.Peers, overlaps)
}

// maxInside bounds the rules for networks of this node within the cluster's.
const maxInside = 8

// Inside returns the widest of the node's networks that lie within a network of pods, and in which no node has its subnet.
func Inside(cluster netip.Prefix, node Node, snap subnet.Snapshot) (list []netip.Prefix) {
	networks := slices.Clone(node.Networks)
	slices.SortStableFunc(networks, func(a, b Network) int { return cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()) })
	for _, n := range networks {
		held := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(n.Prefix.Addr()) })
		within := n.Prefix.Bits() >= cluster.Bits() && cluster.Contains(n.Prefix.Addr())
		if len(list) < maxInside && within && !held && !hasPods(n.Prefix, snap) {
			list = append(list, n.Prefix)
		}
	}
	return list
}
