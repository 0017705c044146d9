package agent

import (
	"fmt"
	"log/slog"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// minIPv4MTU is what every IPv4 link must carry, in bytes (RFC 791), and the least that a bridge can have.
const minIPv4MTU = 68

// countPort notes the MTU of the host's end of a port of the pods' bridge. That of a marked one is what the CNI plugin gave
// it, whatever somebody set since: the port gets that back. What a pod does to its own end changes neither.
func (p Planner) countPort(i netstate.Interface, node *backend.Node) {
	mtu, bridge := i.MTU, i.Master
	if i.Port.Name != "" {
		mtu, bridge = i.Port.MTU, i.Port.Bridge
	}
	if bridge == "" || bridge != p.Base.Bridge {
		return
	}
	if node.PortMTUs == nil {
		node.PortMTUs = map[int]int{}
	}
	node.PortMTUs[mtu]++
}

// PodMTU returns the MTU of the pods' bridge and of new pods, in bytes: the backend's, or that of the bridge's smallest
// port as long as there is a smaller one. A bridge with a larger MTU than a port's reassembles datagrams from fragments
// and cannot send them to that port, and a pod with a larger one than another pod of the node sends it frames that are
// lost, both without a word. IPv6 keeps the 1280 bytes that it needs.
func (p Planner) PodMTU(node backend.Node) int {
	full := p.Backend.MTU(node)
	mtu, least := full, minIPv4MTU
	for port := range node.PortMTUs {
		mtu = min(mtu, port)
	}
	if _, ok := node.Underlay(netstate.IPv6); ok {
		least = minIPv6MTU
	}
	return max(mtu, min(least, full))
}

// reportPodMTU tells of pods for whose sake the node's other pods do not get the MTU that the backend has.
func (a *Agent) reportPodMTU(fit backend.Input) {
	node, p := fit.Node, a.For(fit.Snapshot.Local)
	full, mtu := p.Backend.MTU(node), p.PodMTU(node)
	if mtu >= full {
		return
	}
	smaller := node.SmallerPorts(full)
	a.causes.Add(a.Log, slog.LevelInfo, "pods of a smaller MTU", fmt.Sprint(mtu), "node", a.Node, "pods", smaller, "reason",
		fmt.Sprintf("%s and new pods keep an MTU of %d bytes, and not %d, until %d pods are gone that have less",
			a.Base.Bridge, mtu, full, smaller))
}
