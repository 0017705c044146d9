package connect

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/packet"
)

// watch is what watches the namespaces while connections are made.
type watch struct {
	client string // the host that connects
	places []*place

	mu     sync.Mutex
	unread []string
}

// place is one namespace that is watched.
type place struct {
	probe.Site
	tap    *packet.Tap
	tracer *ruletrace.Tracer
	frames []sighting
	hits   []ruletrace.Hit
}

// sighting is a packet of TCP or UDP on a device.
type sighting struct {
	src, dst netip.AddrPort
	out      bool
	reset    bool
}

// watch begins to watch.
func (p Places) watch(t service.Target) (*watch, error) {
	w := &watch{client: p.Client.Host}
	pairs := p.pairs(t)
	var group errgroup.Group
	for _, s := range p.sites(t) {
		one := &place{Site: s}
		w.places = append(w.places, one)
		group.Go(func() error { return w.open(one, pairs) })
	}
	if err := group.Wait(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// pairs are the addresses between which rules are traced: the client or, after masquerading, a node, and the Service
// or an endpoint.
func (p Places) pairs(t service.Target) (all []ruletrace.Pair) {
	var near, far []netip.Addr
	near = append(near, p.Client.Addrs...)
	near = append(near, p.Nodes[p.Client.Node].Addrs...)
	if t.Node != p.Client.Node {
		near = append(near, p.Nodes[t.Node].Addrs...)
	}
	if t.To.IsValid() {
		far = append(far, t.To.Addr())
	}
	for _, e := range t.Endpoints {
		far = append(far, e.To.Addr())
	}
	for _, b := range far {
		for _, a := range near {
			if a.Is4() == b.Is4() && a != b && len(all) < maxPairs {
				all = append(all, ruletrace.Pair{A: a, B: b})
			}
		}
	}
	return all
}

func (w *watch) open(p *place, pairs []ruletrace.Pair) error {
	err := p.Do(func() (err error) {
		if p.tracer, err = ruletrace.Start(pairs); err != nil {
			w.note(unread(p.Host, "the rules that packets meet", err))
		}
		p.tap, err = packet.OpenTap()
		return err
	})
	if err != nil {
		return fmt.Errorf("watch packets on %s: %w", p.Host, err)
	}
	return nil
}

func (w *watch) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unread = append(w.unread, what)
}

func (w *watch) close() {
	for _, p := range w.places {
		if p.tracer != nil {
			_ = p.tracer.Close() // the kernel removes its tables with the socket
		}
		if p.tap != nil {
			_ = p.tap.Close()
		}
	}
}

// read ends watching, and notes what was seen.
func (w *watch) read(o *service.Observations) error {
	var group errgroup.Group
	for _, p := range w.places {
		group.Go(func() error { return w.readPlace(p) })
	}
	err := group.Wait()
	for _, p := range w.places {
		if p.tracer != nil {
			o.Watched = append(o.Watched, p.Host)
		}
		for _, h := range p.hits {
			o.Hits = append(o.Hits, service.Hit{Host: p.Host, Object: h.Object, Verdict: h.Verdict, Stops: h.Stops,
				Rewrote: h.Rewrote, Src: h.Src, Dst: h.Dst})
		}
	}
	o.Unread = append(o.Unread, w.unread...)
	return err
}

func (w *watch) readPlace(p *place) error {
	seen, err := p.tap.Read(func(f packet.Frame) bool { return true })
	if err != nil {
		return fmt.Errorf("read packets on %s: %w", p.Host, err)
	}
	for _, s := range seen {
		if one, ok := sightingOf(s); ok {
			p.frames = append(p.frames, one)
		}
	}
	if p.tracer == nil {
		return nil
	}
	return p.Do(func() (err error) {
		if p.hits, err = p.tracer.Stop(); err != nil {
			w.note(unread(p.Host, "the rules that packets met", err))
		}
		for _, err := range p.tracer.Unwatched() {
			w.note(unread(p.Host, "some of the rules that packets meet", err))
		}
		return nil
	})
}

// sightingOf returns the innermost packet of a frame, if it is of TCP or UDP.
func sightingOf(s packet.Sighting) (one sighting, ok bool) {
	ip, ok := s.Frame.Last("ip")
	if !ok {
		return one, false
	}
	for _, proto := range []string{"tcp", "udp"} {
		l4, ok := s.Frame.Last(proto)
		if !ok || ip.Proto != map[string]byte{"tcp": 6, "udp": 17}[proto] {
			continue
		}
		from, errFrom := strconv.ParseUint(l4.From, 10, 16)
		to, errTo := strconv.ParseUint(l4.To, 10, 16)
		if errFrom != nil || errTo != nil {
			continue
		}
		return sighting{src: netip.AddrPortFrom(ip.Src, uint16(from)), dst: netip.AddrPortFrom(ip.Dst, uint16(to)),
			out: s.Out, reset: slices.Contains(words(l4.Info), "rst")}, true
	}
	return one, false
}

// find notes where packets of a connection were seen. A node that masquerades the client keeps its port if it can; then
// only endpoints that are known tell that it is this connection.
func (w *watch) find(t *service.Try, target service.Target) {
	for _, p := range w.places {
		for _, s := range p.frames {
			switch {
			case s.src == t.From && s.dst != t.To, s.src.Port() == t.From.Port() && isEndpoint(s.dst, t, target):
				t.Wire = s.dst
				if !slices.Contains(t.Hosts, p.Host) {
					t.Hosts = append(t.Hosts, p.Host)
				}
			case s.dst.Port() != t.From.Port():
			case p.Host == w.client && !s.out && s.dst == t.From && s.src != t.To:
				t.Answerer = s.src
			case s.reset && s.out && (s.src == t.Wire || isEndpoint(s.src, t, target)):
				t.Reset = p.Host // the pod's comes last
			}
		}
	}
}

// isEndpoint reports whether packets of a connection are on their way to this endpoint: one that the API server has,
// or the one that connection tracking has.
func isEndpoint(a netip.AddrPort, t *service.Try, target service.Target) bool {
	return a == t.Tracked || slices.ContainsFunc(target.Endpoints, func(e service.Endpoint) bool { return e.To == a })
}
