package agent

import (
	"context"
	"fmt"
	"log/slog"
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
	node  backend.Node
	snap  *subnet.Snapshot
	skips []subnet.Skip
}

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
	for _, lease := range p.snap.Peers {
		peer := reach.Peer{Node: lease.Node}
		for _, s := range lease.Stacks {
			if _, has := p.snap.Local.Stack(s.Family()); has && s.Subnet.IsValid() {
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
	s, _ := p.snap.Local.Stack(netstate.FamilyOf(to))
	if !s.Subnet.IsValid() {
		return netip.Addr{}
	}
	return backend.Gateway(s.Subnet)
}

// fullSize returns the MTU of this node's pods, 0 before there is a lease.
func (a *Agent) fullSize() int {
	p := a.paths.Load()
	if p == nil {
		return 0
	}
	return a.For(p.snap.Local).PodMTU(p.node)
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
	a.Log.Log(context.Background(), slog.LevelWarn, "a peer does not answer", "node", a.Node, "reason", text)
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
