package facts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/unusual"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/echo"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/packet"
)

// replyTimeout is how long a round of probes waits. All probes of a round are sent at once.
const replyTimeout = 300 * time.Millisecond

// maxProbed is how many peers are probed.
const maxProbed = 100

// probe sends packets to each peer's bridge through the path of pods, small and of the full size. To those that do
// not answer it also sends through the underlay, and counts what leaves and what comes back. What needs patience although
// all is well is left to AllProbes.
func (g *gathering) probe() {
	for _, u := range g.Underlay.Underlays {
		if g.options.Probe == doctor.AllProbes {
			if err := g.askTaken(u); err != nil {
				g.unread("who else has "+u.Local.String(), err)
			}
		}
		var all []doctor.Probe
		for _, p := range g.Paths {
			if p.Subnet.Addr().Is4() == u.Local.Is4() && len(all) < maxProbed {
				to := backend.Gateway(p.Subnet)
				all = append(all, newProbe(p.Node, doctor.ProbeOverlay, to, echoSize(to)))
			}
		}
		if len(all) == 0 {
			continue
		}
		if err := g.rounds(u, all); err != nil {
			g.unread("probes", err)
		}
	}
}

// askTaken asks the segment who else has the underlay's address. Where this machine has several interfaces on it, it answers
// itself. Of IPv6 the kernel has asked when it got the address.
func (g *gathering) askTaken(u backend.Underlay) error {
	at := slices.IndexFunc(g.Interfaces, func(i netstate.Interface) bool { return i.Name == u.Dev })
	if !u.Local.Is4() || at < 0 || !g.Interfaces[at].Ethernet {
		return nil
	}
	holders, err := packet.Holders(u.Dev, u.Local)
	for _, h := range holders {
		mac := netstate.MAC(h)
		if !slices.ContainsFunc(g.Interfaces, func(i netstate.Interface) bool { return i.MAC == mac }) {
			g.Taken = append(g.Taken, doctor.Taken{Addr: u.Local, MAC: mac})
		}
	}
	return err
}

func newProbe(node string, kind doctor.ProbeKind, to netip.Addr, size int) doctor.Probe {
	return doctor.Probe{Node: node, Kind: kind, To: to, Size: size, Sent: -1, Seen: -1}
}

// echoSize returns the size of the packet of a small echo request.
func echoSize(to netip.Addr) int { return echo.Headers(to) + echo.Least }

func (g *gathering) rounds(u backend.Underlay, overlay []doctor.Probe) error {
	if err := send(overlay); err != nil {
		return err
	}
	if err := g.askOthers(overlay); err != nil {
		return err
	}
	var large, silent, deaf, outer []doctor.Probe
	for _, p := range overlay {
		switch {
		case p.OK:
			large = append(large, newProbe(p.Node, doctor.ProbeLarge, p.To, g.PodMTU))
		case p.Connects:
			deaf = append(deaf, p)
			g.unread("packets of the full size to "+p.Node, errors.New("it answers connections, and no pings"))
		default:
			silent = append(silent, p)
			outer = append(outer, newProbe(p.Node, doctor.ProbeUnderlay, g.underlayOf(p), p.Size))
		}
	}
	if err := g.counted(u, silent, large, outer); err != nil {
		return err
	}
	if g.options.Probe == doctor.AllProbes {
		if err := g.tcp(large); err != nil {
			return err
		}
	}
	g.Probes = slices.Concat(g.Probes, outer, silent, deaf, large)
	return nil
}

// counted sends all three at once, and counts at the underlay's device what becomes of those to silent peers.
func (g *gathering) counted(u backend.Underlay, silent, large, outer []doctor.Probe) error {
	if len(silent) == 0 {
		return send(large)
	}
	c := counter{dev: u.Dev, peers: map[netip.Addr]int{}}
	for _, p := range g.Paths { // all peers of a family are reached alike, unless they are routed
		if c.proto == "" && p.Underlay.Is4() == u.Local.Is4() {
			c.proto, c.port = g.Wrapping(p)
		}
	}
	for i, p := range silent {
		if c.peers[p.To] = i; c.proto != "" { // else the echoes to the underlay's address would be counted too
			c.peers[outer[i].To] = i
		}
	}
	o := watch.Options{Places: []watch.Place{watch.Here(g.Node)}, Match: c.counts}
	seen, err := watch.While(o, func() error { return send(large, outer, silent) })
	if err != nil {
		return err
	}
	c.count(seen.Views[0].Frames, silent)
	return nil
}

// maxLost is how many lost connections are looked into: each takes a while.
const maxLost = 3

// tcp opens a connection to each peer that answers pings, through the path of pods. A lost one counts only if the same host
// answers through the underlay: many hosts drop what nobody listens for.
func (g *gathering) tcp(answering []doctor.Probe) error {
	var inner, outer []netip.Addr
	for _, p := range answering {
		inner, outer = append(inner, p.To), append(outer, g.underlayOf(p))
	}
	through, err := connects(inner, nothing)
	if err != nil || !slices.Contains(through, false) {
		return err
	}
	around, err := connects(outer, nothing)
	lost := 0
	for i, p := range answering {
		if through[i] || err != nil || !around[i] || lost == maxLost {
			continue
		}
		lost++
		if pods, err := connects(doctor.FirstPods(p.To), nothing); err != nil || slices.Contains(pods, true) {
			continue // it is the host that drops them
		}
		p = newProbe(p.Node, doctor.ProbeTCP, p.To, echoSize(p.To))
		p.Error = "no answer to a TCP connection, while pings are answered"
		p.By, p.Fix = diverts(p.To)
		g.Probes = append(g.Probes, p)
	}
	return err
}

// diverts returns the policy rule or route by which the kernel refuses a TCP packet to a host, or leads it to another table.
func diverts(to netip.Addr) (by, fix string) {
	route, rule, err := unusual.Routed(unusual.Packet{Dst: to, Proto: unix.IPPROTO_TCP, SPort: doctor.ClientPort, DPort: closedPort})
	switch {
	case rule.Text != "":
		return "policy rule " + rule.Text, rule.Fix
	case err != nil && route.Text != "":
		return "route " + route.Text, route.Fix
	}
	return "", ""
}

func (g *gathering) underlayOf(p doctor.Probe) netip.Addr {
	for _, path := range g.Paths {
		if path.Node == p.Node && path.Underlay.Is4() == p.To.Is4() {
			return path.Underlay
		}
	}
	return netip.Addr{}
}

// send sends each probe of the groups once and notes which are answered. The probes of a group are of one family.
func send(groups ...[]doctor.Probe) error {
	sockets := make([]*echo.Socket, len(groups))
	for i, probes := range groups {
		if len(probes) == 0 {
			continue
		}
		s, err := echo.Open(probes[0].To, echo.Options{Limit: echo.DeviceMTU})
		if err != nil {
			return err
		}
		defer s.Close()
		sockets[i] = s
		for n := range probes {
			p := &probes[n]
			p.Error = "no reply"
			switch err := s.Send(p.To, uint64(n), p.Size); {
			case errors.Is(err, unix.EMSGSIZE):
				p.Error = fmt.Sprintf("%d bytes are more than this node's own MTU towards %s", p.Size, p.To)
			case err != nil:
				p.Error = err.Error()
			}
		}
	}
	deadline := time.Now().Add(replyTimeout)
	for i, probes := range groups {
		if sockets[i] != nil {
			receive(sockets[i], probes, deadline)
		}
	}
	return nil
}

// grace is for replies that already wait when the time is over.
const grace = 5 * time.Millisecond

// receive notes the replies, until all have come or the time is over.
func receive(s *echo.Socket, probes []doctor.Probe, deadline time.Time) {
	if soon := time.Now().Add(grace); deadline.Before(soon) {
		deadline = soon
	}
	_ = s.SetReadDeadline(deadline) // a socket that cannot have one ends the read at once
	for open := len(probes); open > 0; {
		from, n, err := s.Receive()
		if err != nil {
			return
		}
		if n >= uint64(len(probes)) || probes[n].To != from || probes[n].OK {
			continue
		}
		probes[n].OK, probes[n].Error = true, ""
		open--
	}
}
