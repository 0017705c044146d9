package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// reachWait is how long a peer has for an answer.
const reachWait = 500 * time.Millisecond

// paths is what the loop last wanted for the ways to peers.
type paths struct {
	fit   backend.Input // without what is left out on this node
	skips []subnet.Skip
	mtus  map[netip.Prefix]int // of routes that have one
}

// pathsOf returns what is wanted for the ways to peers.
func pathsOf(fit backend.Input, skips []subnet.Skip, want netstate.State) *paths {
	p := &paths{fit, skips, map[netip.Prefix]int{}}
	for _, o := range want {
		if r, ok := o.(netstate.Route); ok && r.MTU > 0 {
			p.mtus[r.Dst] = r.MTU
		}
	}
	return p
}

// tunnels are the backends of which each node has the end of a tunnel among its pods' addresses, with a pod or without.
var tunnels = []string{"vxlan", "udp", "ipip", "wireguard"}

// prober returns what asks peers for an answer.
func (a *Agent) prober() *reach.Prober {
	return reach.New(reach.Config{Node: a.Node, Peers: a.reachable, Count: a.Settings.ReachPeers, Round: a.Settings.ReachRound,
		Ask:     reach.Asker{From: a.ownAmongPods, MTU: a.fullSize, Wait: reachWait}.Ask,
		Changed: a.reportReach, Metrics: a.Metrics.reach})
}

// reachable returns the peers to which the kernel has a way.
func (a *Agent) reachable() (peers []reach.Peer) {
	p := a.paths.Load()
	if p == nil {
		return nil
	}
	leftOut := map[string]bool{}
	for _, s := range p.skips {
		leftOut[s.Node] = true
	}
	for _, lease := range p.fit.Snapshot.Peers {
		peer := reach.Peer{Node: lease.Node, Sure: slices.Contains(tunnels, lease.Backend)}
		for _, s := range lease.Stacks {
			if _, has := p.fit.Snapshot.Local.Stack(s.Family()); has && s.Subnet.IsValid() && !lease.Earlier {
				peer.Addrs = append(peer.Addrs, backend.Gateway(s.Subnet))
			}
		}
		if !leftOut[lease.Node] && len(peer.Addrs) > 0 {
			peers = append(peers, peer)
		}
	}
	return peers
}

// ownAmongPods returns this node's address among its pods', the zero Addr if it has none.
func (a *Agent) ownAmongPods(to netip.Addr) netip.Addr {
	p := a.paths.Load()
	if p == nil || a.Base.Bridge == "" {
		return netip.Addr{}
	}
	s, _ := p.fit.Snapshot.Local.Stack(netstate.FamilyOf(to))
	if !s.Subnet.IsValid() {
		return netip.Addr{}
	}
	return backend.Gateway(s.Subnet)
}

// fullSize returns the size of the largest packet that pods send to a peer, 0 before there is a lease: their MTU, or that of the
// route.
func (a *Agent) fullSize(to netip.Addr) int {
	p := a.paths.Load()
	if p == nil {
		return 0
	}
	mtu := a.For(p.fit.Snapshot.Local).PodMTU(p.fit.Node)
	for dst, most := range p.mtus {
		if dst.Contains(to) {
			mtu = min(mtu, most)
		}
	}
	return mtu
}

// reportReach says that peers do not answer any more, or that all do again.
func (a *Agent) reportReach(unreached []reach.Unreached) {
	if len(unreached) == 0 {
		a.Log.Info("all peers answer again", "node", a.Node)
		a.event("Normal", "PeersReached", "packets come back from all peers again")
		return
	}
	first := unreached[0]
	text := fmt.Sprintf("no packet comes back from node %s (%s): %s", clip(first.Node), first.Addr, first.Error)
	if more := len(nodesOf(unreached)) - 1; more > 0 {
		text += fmt.Sprintf("; nor from %d more", more)
	}
	a.Log.Warn("a peer does not answer", "node", a.Node, "reason", text)
	a.event("Warning", "PeersUnreached", text+"; twillctl doctor says why")
}

// nodesOf returns the names of unreached nodes, each once.
func nodesOf(all []reach.Unreached) (nodes []string) {
	for _, u := range all {
		if !slices.Contains(nodes, u.Node) {
			nodes = append(nodes, u.Node)
		}
	}
	return nodes
}
