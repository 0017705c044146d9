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

// dnsPort is where a DNS server listens.
const dnsPort = 53

// reachWait is how long a peer has for an answer.
const reachWait = 500 * time.Millisecond

// paths is what the loop last wanted for the ways to peers.
type paths struct {
	fit   backend.Input // without what is left out on this node
	skips []subnet.Skip
	gates []netip.Addr         // the default gateways of the underlay
	mtus  map[netip.Prefix]int // of routes that have one
}

// pathsOf returns what is wanted for the ways to peers.
func pathsOf(fit backend.Input, skips []subnet.Skip, gates []netip.Addr, want netstate.State) *paths {
	p := &paths{fit, skips, gates, map[netip.Prefix]int{}}
	for _, o := range want {
		if r, ok := o.(netstate.Route); ok && r.MTU > 0 {
			p.mtus[r.Dst] = r.MTU
		}
	}
	return p
}

// gatewaysOf returns the default gateways of the node's underlays. A link-local one has its device for a zone.
func gatewaysOf(interfaces []netstate.Interface, node backend.Node) (gates []netip.Addr) {
	for _, i := range interfaces {
		for _, g := range i.Gateways {
			if u, ok := node.Underlay(netstate.FamilyOf(g)); !ok || u.Dev != i.Name {
				continue
			}
			if g.IsLinkLocalUnicast() && g.Is6() {
				g = g.WithZone(i.Name)
			}
			gates = append(gates, g)
		}
	}
	return gates
}

// tunnels are the backends of which each node has the end of a tunnel among its pods' addresses, with a pod or without.
var tunnels = []string{"vxlan", "udp", "ipip", "wireguard"}

// prober returns what asks peers for an answer.
func (a *Agent) prober() *reach.Prober {
	return reach.New(reach.Config{Node: a.Node, Peers: a.reachable, Needs: a.needs, Count: a.Settings.ReachPeers, Round: a.Settings.ReachRound,
		Ask:     reach.Asker{From: a.ownAmongPods, MTU: a.fullSize, Wait: reachWait, Resolved: a.Resolved}.Ask,
		Changed: a.reportReach, State: a.keepReached, Metrics: a.Metrics.reach})
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
				peer.Addrs = append(peer.Addrs, netip.AddrPortFrom(backend.Gateway(s.Subnet), 0))
			}
		}
		if !leftOut[lease.Node] && len(peer.Addrs) > 0 {
			peers = append(peers, peer)
		}
	}
	return peers
}

// needs returns what this node needs beside its peers, as far as it is known. Of what never answered nothing is said: it may
// answer nobody, or not nodes.
func (a *Agent) needs() (all []reach.Peer) {
	add := func(what reach.Kind, port uint16, addrs ...netip.Addr) {
		p := reach.Peer{Kind: what}
		for _, a := range addrs {
			p.Addrs = append(p.Addrs, netip.AddrPortFrom(a, port))
		}
		all = append(all, p)
	}
	if p := a.paths.Load(); p != nil {
		add(reach.Gateway, 0, p.gates...)
	}
	if a.APIServer != nil && a.APIServer().IsValid() {
		add(reach.API, a.APIServer().Port(), a.APIServer().Addr())
	}
	add(reach.DNS, dnsPort, a.Settings.ReachDNS...)
	return all
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
		a.Log.Info("all answer again", "node", a.Node)
		a.event("Normal", "PeersReached", "packets come back again from all that did not answer")
		return
	}
	reason, text := inVain(unreached)
	who := "a peer"
	if reason == targetsUnreached {
		who = unreached[0].String()
	}
	a.Log.Warn(who+" does not answer", "node", a.Node, "reason", text)
	a.event("Warning", reason, text+"; twillctl doctor says why")
}

// keepReached keeps a condition of the Node that says the same.
func (a *Agent) keepReached(unreached []reach.Unreached) {
	r, ok := a.Store.(subnet.Reporter)
	switch {
	case !ok:
	case len(unreached) == 0:
		r.Reached(true, "PeersReached", "packets come back from all that are asked")
	default:
		reason, text := inVain(unreached)
		r.Reached(false, reason, text)
	}
}

// targetsUnreached is the reason where all peers answer.
const targetsUnreached = "TargetsUnreached"

// inVain says who does not answer, and names a reason for it.
func inVain(unreached []reach.Unreached) (reason, text string) {
	first := unreached[0]
	if i := slices.IndexFunc(unreached, func(u reach.Unreached) bool { return u.Kind == reach.Node }); i >= 0 {
		first = unreached[i]
	}
	text = fmt.Sprintf("no packet comes back from %s (%s): %s", clip(first.String()), first.Addr, first.Error)
	var names []string
	reason = targetsUnreached
	for _, u := range unreached {
		names = append(names, u.String())
		if u.Kind == reach.Node {
			reason = "PeersUnreached"
		}
	}
	if more := len(slices.Compact(names)) - 1; more > 0 {
		text += fmt.Sprintf("; nor from %d more", more)
	}
	return reason, text
}
