// Package connect makes real connections to a Service from inside a pod's namespace, and watches them: the firewall
// rules that they meet, what connection tracking has of them, the devices where they are seen, and whether anybody
// listens where they end. Package doctor/service judges that.
package connect

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/watch"
)

// Places are the namespaces that connections may come through. Those that cannot be entered are missing.
type Places struct {
	Client Client
	Nodes  map[string]Node
	Pods   map[netip.Addr]watch.Place
}

// Client is the pod that connects.
type Client struct {
	watch.Place
	Node  string
	Addrs []netip.Addr
}

// Node is a node's namespace, without Do if it cannot be entered, and its addresses on the underlay.
type Node struct {
	watch.Place
	Addrs []netip.Addr
}

// The least and the most connections to one port, and how many there are for each endpoint: kube-proxy chooses at
// random, and one bad endpoint of several should be found.
const (
	minTries, maxTries, perEndpoint = 4, 24, 4
)

// maxWatched is how many endpoints' pods are watched, and maxPairs how many of their addresses rules are traced for.
const maxWatched, maxPairs = 8, 64

// To connects to a target, and returns what was seen.
func (p Places) To(ctx context.Context, t service.Target) (service.Observations, error) {
	calls := p.calls(t)
	if len(calls) == 0 {
		return service.Observations{}, ctx.Err()
	}
	var answers []answer
	var tracked tracking
	o := service.Observations{Sockets: map[netip.AddrPort]service.Socket{}}
	seen, err := watch.While(watch.Options{Places: p.watched(t), Rules: p.pairs(t), Drops: true}, func() error {
		if t.Service.Sticky > 0 { // the first connection decides for the others
			answers = makeAll(ctx, calls[:1])
			calls = calls[1:]
		}
		answers = append(answers, makeAll(ctx, calls)...)
		tracked = p.tracked(t, &o)
		hangUp(answers)
		return nil
	})
	if err != nil {
		return o, err
	}
	for _, v := range seen.Views {
		if v.Traced {
			o.Watched = append(o.Watched, v.Host)
		}
		o.Hits = append(o.Hits, v.Hits...)
	}
	o.Unread = append(o.Unread, seen.Unread...)
	if slices.ContainsFunc(answers, func(a answer) bool { return a.outcome != service.Answered }) {
		o.Unread = append(o.Unread, seen.NoDrops...)
	}
	for _, a := range answers {
		try := service.Try{From: a.local, To: a.To, Outcome: a.outcome, Error: a.text}
		tracked.find(&try, t)
		p.find(seen.Views, &try, t)
		p.drops(seen.Views, &try, t)
		if t.Way == service.Headless && !try.Wire.IsValid() {
			try.Wire = try.To
		}
		o.Tries = append(o.Tries, try)
		p.sockets(&o, try, t.Port.Proto)
	}
	return o, ctx.Err()
}

// calls returns what to connect to: each endpoint of a headless Service, else the Service's address several times.
func (p Places) calls(t service.Target) (all []call) {
	kind, ok := kindOf(t.Port)
	if !ok {
		return nil
	}
	if t.Way != service.Headless {
		n := min(maxTries, max(minTries, perEndpoint*len(t.Endpoints)))
		src, ok := p.source(t.To.Addr())
		for i := 0; ok && i < n; i++ {
			all = append(all, call{p.Client.Place, src, kind, t.To})
		}
		return all
	}
	for _, e := range t.Endpoints[:min(maxTries, len(t.Endpoints))] {
		if src, ok := p.source(e.To.Addr()); ok && e.Ready {
			all = append(all, call{p.Client.Place, src, kind, e.To})
		}
	}
	return all
}

// source returns the client's address of a family.
func (p Places) source(to netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(p.Client.Addrs, func(a netip.Addr) bool { return a.Is4() == to.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.Client.Addrs[i], true
}

// kindOf returns what is sent to a port; ok is false for a protocol that is not probed.
func kindOf(p service.Port) (probe.Kind, bool) {
	switch {
	case p.Proto == "TCP":
		return probe.TCP, true
	case p.Proto == "UDP" && p.Port == 53:
		return probe.DNS, true
	case p.Proto == "UDP":
		return probe.UDP, true
	}
	return "", false
}

// makeAll makes all connections at once.
func makeAll(ctx context.Context, calls []call) []answer {
	answers := make([]answer, len(calls))
	var group errgroup.Group
	for i, c := range calls {
		group.Go(func() error {
			answers[i] = c.make(ctx)
			return nil
		})
	}
	_ = group.Wait() // errors are answers
	return answers
}

// hangUp closes the connections. They are kept until then, so that connection tracking has them.
func hangUp(answers []answer) {
	for _, a := range answers {
		if a.conn != nil {
			_ = a.conn.Close()
		}
	}
}

// watched returns the namespaces to watch, in the order in which packets meet them.
func (p Places) watched(t service.Target) []watch.Place {
	all := []watch.Place{p.Client.Place, p.Nodes[p.Client.Node].Place, p.Nodes[t.Node].Place}
	endpoints := slices.Clone(t.Endpoints)
	slices.SortStableFunc(endpoints, func(a, b service.Endpoint) int { return cmp.Compare(rank(a, p), rank(b, p)) })
	endpoints = endpoints[:min(maxWatched, len(endpoints))]
	for _, e := range endpoints {
		all = append(all, p.Nodes[e.Node].Place)
	}
	for _, e := range endpoints {
		all = append(all, p.Pods[e.To.Addr()])
	}
	return watch.Enterable(all)
}

// rank puts endpoints first that get connections and can be looked at.
func rank(e service.Endpoint, p Places) (n int) {
	if !e.Ready {
		n += 2
	}
	if p.Pods[e.To.Addr()].Do == nil {
		n++
	}
	return n
}

func unread(host, what string, err error) string { return fmt.Sprintf("%s: %s: %v", host, what, err) }
