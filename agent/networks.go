package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// networks returns the addresses and networks of the machine's other interfaces that lie in the cluster's networks. Where
// others make the pods' bridge, theirs are pods' too: only what the node's own packets take counts.
func (p Planner) networks(
	interfaces []netstate.Interface, underlays []backend.Underlay, before []backend.Network,
) (list []backend.Network) {
	var routed []netip.Prefix
	for _, i := range interfaces {
		routed = append(routed, i.Routed...)
	}
	for _, i := range interfaces {
		vital := len(i.Default) > 0 || slices.ContainsFunc(underlays, func(u backend.Underlay) bool { return u.Dev == i.Name })
		if p.isOurs(i) || p.Base.Bridge == "" && !vital {
			continue
		}
		add := func(prefix netip.Prefix, what string) {
			n := backend.Network{Foreign: subnet.Foreign{Prefix: prefix, What: what + " on " + i.Name}, Dev: i.Name,
				Used: vital || i.Up && (i.Running || p.narrow(prefix))}
			n.Late = slices.ContainsFunc(routed, n.In) || slices.ContainsFunc(before, func(b backend.Network) bool {
				return b.Late && b.Prefix == n.Prefix && b.Dev == n.Dev
			})
			if p.inCluster(prefix.Addr()) && !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
		for _, a := range i.Addrs {
			add(netstate.Host(a.Addr()), "this node's own address")
		}
		for _, a := range i.Gateways {
			add(netstate.Host(a), "this node's gateway")
		}
		for _, a := range i.Addrs { // by addresses, and not by routes: one that somebody led astray is no network
			if !a.IsSingleIP() {
				add(a.Masked(), "a network of this node")
			}
		}
	}
	return list
}

// outside returns the devices by which packets come that are no pods': those of the underlays.
func outside(node backend.Node) (devices []string) {
	for _, u := range node.Underlays {
		if !slices.Contains(devices, u.Dev) {
			devices = append(devices, u.Dev)
		}
	}
	return devices
}

// isOurs reports whether the interface is one of the agent's, or will be when it has applied a plan.
func (p Planner) isOurs(i netstate.Interface) bool {
	return i.Owned || i.Name == p.Base.Bridge || netstate.IsBackendName(i.Name)
}

// narrow reports whether the kernel takes a network's route before that of the pods' subnet around it, also while the
// network's device has no carrier. One address is no network.
func (p Planner) narrow(network netip.Prefix) bool {
	return !network.IsSingleIP() && slices.ContainsFunc(p.Network.Pools, func(pool subnet.Pool) bool {
		return pool.Network.Contains(network.Addr()) && network.Bits() >= pool.SubnetLen
	})
}

func (p Planner) inCluster(a netip.Addr) bool {
	return slices.ContainsFunc(p.Network.Pools, func(pool subnet.Pool) bool { return pool.Network.Contains(a) })
}

// exclude tells the store, until there is a lease, what no lease of this node may contain. A lease of an earlier run
// stays: its pods are there.
func (a *Agent) exclude(node backend.Node) {
	e, ok := a.Store.(subnet.Excluder)
	if !ok {
		return
	}
	var list []subnet.Foreign
	if !a.leases.acquired.Load() {
		earlier := a.earlierLease()
		for _, n := range node.Networks {
			if n.Used && !earlier.Holds(n.Foreign) {
				list = append(list, n.Foreign)
			}
		}
	}
	e.Exclude(list)
}

// reportOverlaps tells of each network of this machine that lies in a subnet of pods although it did not keep the node
// from its lease: it is idle, or it came later. Nothing is withdrawn for it.
func (a *Agent) reportOverlaps(node backend.Node, snap *subnet.Snapshot) {
	if len(node.Networks) == 0 {
		return
	}
	leases := append([]subnet.Lease{snap.Local}, snap.Peers...)
	for _, n := range node.Networks {
		for _, lease := range leases {
			leftOut := n.Used && !n.Late && lease.Node != snap.Local.Node // which is told as such
			if leftOut || !lease.Holds(n.Foreign) {
				continue
			}
			text := fmt.Sprintf("%s, %s, lies in the subnet of node %s: packets for one may go to the other, move one of them",
				n.Prefix, n.What, lease.Node)
			if a.causes.Add(a.Log, slog.LevelWarn, "a network of this node lies among pods", n.Dev+" "+lease.Node,
				"node", a.Node, "reason", text) {
				a.event("Warning", "NetworkOverlap", text)
			}
		}
	}
}
