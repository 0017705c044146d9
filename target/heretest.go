package target

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate"
)

// Test sends packets from the node's pods, or itself, to its peers and the goals.
func (h *here) Test(ctx context.Context, g Goals) (doctor.Connectivity, error) {
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	pods, err := Addresses("--pod", g.Pods)
	if err != nil {
		return tested, err
	}
	outside, err := Addresses("--outside", g.Outside)
	if err != nil {
		return tested, err
	}
	single, err := g.single()
	if err != nil {
		return tested, err
	}
	began := time.Now()
	f, err := h.gather(ctx, doctor.NoProbes)
	if err != nil {
		return tested, err
	}
	n, err := follow.Node(h.do, f, pods...)
	if err != nil {
		return tested, err
	}
	n.ToOutside(f, outside...)
	judges := doctor.NewJudges(f)
	n.Denies = judges.Denies
	r, err := n.Probe(ctx)
	count(&tested, n, r)
	from := watch.Place{Host: f.Node, Do: h.do}
	for _, s := range single {
		tested.Count(f.Node, s.name, netstate.FamilyOf(s.to.Addr()).String(), string(s.kind), outcome(probe.Ask(ctx, from, s.kind, s.to)))
	}
	for _, p := range f.Paths {
		err := probe.Ask(ctx, from, probe.ICMP, netip.AddrPortFrom(p.Underlay, 0))
		tested.Count(f.Node, "node "+p.Node, netstate.FamilyOf(p.Underlay).String(), string(probe.ICMP), outcome(err))
	}
	tested.Probes.Seconds, tested.Probes.Unread, tested.Probes.Notes = time.Since(began).Seconds(), r.Unread, r.Notes
	tested.Explain(judges.Lost(r.Losses, r.Denied))
	return tested, err
}

// outcome returns what became of a packet that nobody may deny.
func outcome(err error) doctor.Outcome {
	if err != nil {
		return doctor.WasLost
	}
	return doctor.CameBack
}

// goal is one thing to reach from a node.
type goal struct {
	name string
	to   netip.AddrPort
	kind probe.Kind
}

// single returns the goals that are no pods.
func (g Goals) single() (all []goal, err error) {
	for _, text := range g.Services {
		name, at, _ := strings.Cut(text, "=")
		to, err := netip.ParseAddrPort(at)
		if err != nil {
			return nil, fmt.Errorf("--service %q: want NAME=ADDRESS:PORT", text)
		}
		all = append(all, goal{"Service " + name, to, probe.TCP})
	}
	dns, err := Addresses("--dns", g.DNS)
	for _, a := range dns {
		all = append(all, goal{"DNS", netip.AddrPortFrom(a, 53), probe.DNS})
	}
	return all, err
}

// Addresses reads the values of a flag.
func Addresses(flag string, texts []string) (all []netip.Addr, err error) {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want an IP address", flag, text)
		}
		all = append(all, a)
	}
	return all, nil
}
