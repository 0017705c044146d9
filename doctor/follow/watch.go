package follow

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/unusual"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/packet"
)

// watch is what watches namespaces while probes are sent.
type watch struct {
	network Network
	places  []*place
	drops   *drops.Watcher
	unread  []string
}

// place is one namespace that is watched.
type place struct {
	probe.Site
	inode  uint32
	tap    *packet.Tap
	tracer *ruletrace.Tracer
	macs   []string
	addrs  []netip.Addr
	veths  map[string]veth

	unusual []locate.Object
	neighs  []neighbour
	unread  []string
}

// watch begins to watch the paths of probes.
func (n Network) watch(lost []probe.Result) (*watch, error) {
	w := &watch{network: n}
	var pairs []ruletrace.Pair
	for _, r := range lost {
		f := n.flow(r)
		pairs = append(pairs, ruletrace.Pair{A: f.Src, B: f.Dst})
		if f.Outer[0].IsValid() {
			pairs = append(pairs, ruletrace.Pair{A: f.Outer[0], B: f.Outer[1]})
		}
	}
	var inodes []uint32
	var group errgroup.Group
	for _, s := range n.sites(lost) {
		p := &place{Site: s}
		w.places = append(w.places, p)
		group.Go(func() error { return p.open(pairs) })
	}
	if err := group.Wait(); err != nil {
		w.close()
		return nil, err
	}
	for _, p := range w.places {
		inodes = append(inodes, p.inode)
	}
	var err error
	if w.drops, err = drops.WatchNamespaces(inodes); err != nil {
		w.unread = append(w.unread, fmt.Sprintf("the kernel's reasons for dropping packets: %v", err))
	}
	return w, nil
}

func (p *place) open(pairs []ruletrace.Pair) error {
	err := p.Do(func() (err error) {
		if p.inode, err = drops.Namespace(); err != nil {
			return err
		}
		if err := p.devices(); err != nil {
			return err
		}
		if p.tracer, err = ruletrace.Start(pairs); err != nil {
			p.unread = append(p.unread, unreadAt(p.Host, "the rules that packets meet", err))
		}
		p.tap, err = packet.OpenTap()
		return err
	})
	if err != nil {
		return fmt.Errorf("watch packets on %s: %w", p.Host, err)
	}
	return nil
}

// veth is one end of a virtual cable.
type veth struct{ index, peer int }

// devices notes the MACs, addresses and virtual cables of the namespace.
func (p *place) devices() error {
	devices, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	links, err := rtnl.Retry("links", netlink.LinkList)
	if err != nil {
		return err
	}
	p.veths = map[string]veth{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "veth" {
			p.veths[a.Name] = veth{a.Index, a.ParentIndex}
		}
	}
	for _, d := range devices {
		if len(d.HardwareAddr) > 0 {
			p.macs = append(p.macs, d.HardwareAddr.String())
		}
		addrs, err := d.Addrs()
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", d.Name, err)
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				p.addrs = append(p.addrs, prefix.Addr())
			}
		}
	}
	return nil
}

// close stops watching drops first: closing a tap drops the packets that wait in it.
func (w *watch) close() {
	if w.drops != nil {
		_ = w.drops.Close()
	}
	for _, p := range w.places {
		if p.tracer != nil {
			_ = p.tracer.Close()
		}
		if p.tap != nil {
			_ = p.tap.Close()
		}
		p.tracer, p.tap = nil, nil
	}
	w.drops = nil
}

// seenAt is what one place saw, before it is known of which flow it is.
type seenAt struct {
	*place
	frames []packet.Sighting
	drops  []drops.Drop
	hits   []ruletrace.Hit
}

// collect ends watching, and reads what was seen.
func (w *watch) collect(ctx context.Context) ([]*seenAt, error) {
	var dropped []drops.Drop
	if w.drops != nil {
		var err error
		if dropped, err = w.drops.Read(); err != nil {
			w.unread = append(w.unread, err.Error())
		}
	}
	all := make([]*seenAt, len(w.places))
	var group errgroup.Group
	for i, p := range w.places {
		s := &seenAt{place: p}
		all[i] = s
		for _, d := range dropped {
			if d.Netns == p.inode && !d.OfWatching() {
				s.drops = append(s.drops, d)
			}
		}
		group.Go(func() error { return s.read(ctx, w.network) })
	}
	err := group.Wait()
	for _, p := range w.places {
		w.unread = append(w.unread, p.unread...)
	}
	return all, err
}

func (s *seenAt) read(ctx context.Context, n Network) (err error) {
	if s.frames, err = s.tap.Read(func(packet.Frame) bool { return true }); err != nil {
		return err
	}
	return s.Do(func() error {
		s.readRules()
		all, unread := unusual.List(ctx)
		for _, u := range unread {
			s.unread = append(s.unread, s.Host+": "+u)
		}
		if s.neighs, err = neighbours(); err != nil {
			s.unread = append(s.unread, unreadAt(s.Host, "neighbours", err))
		}
		s.unusual = slices.DeleteFunc(all, func(o locate.Object) bool {
			return n.Expected != nil && n.Expected(s.Host, o)
		})
		return nil
	})
}

// readRules reads which rules packets met, and notes what could not be watched.
func (s *seenAt) readRules() {
	if s.tracer == nil {
		return
	}
	var err error
	if s.hits, err = s.tracer.Stop(); err != nil {
		s.unread = append(s.unread, unreadAt(s.Host, "the rules that packets met", err))
	}
	for _, err := range s.tracer.Unwatched() {
		s.unread = append(s.unread, unreadAt(s.Host, "some of the rules that packets meet", err))
	}
}

// of returns what concerns one flow.
func (w *watch) of(f locate.Flow, all []*seenAt) (hosts []locate.Host) {
	for _, s := range all {
		if !slices.Contains(f.Path, s.Host) {
			continue
		}
		h := locate.Host{Name: s.Host, Unusual: s.unusual, MACs: s.macs}
		for _, n := range s.neighs {
			h.Neighbours = append(h.Neighbours, n.Object)
		}
		for _, frame := range s.frames {
			if seen, ok := sight(f, frame.Frame); ok {
				seen.Host, seen.Dev, seen.Out, seen.Stray = s.Host, frame.Dev, frame.Out, frame.Stray
				h.Seen = append(h.Seen, seen)
			}
		}
		for _, d := range s.drops {
			frame := packet.DecodeStart(d.Packet)
			if seen, ok := sight(f, frame); ok {
				dropped := locate.Drop{Host: s.Host, Dev: d.Dev, Reason: d.Reason, Function: d.Function,
					Back: seen.Back, Neighbour: seen.Asks.IsValid() || seen.Tells.IsValid()}
				if d.Reason == "NO_SOCKET" {
					dropped.Unheard = frame.Unheard()
				}
				h.Drops = append(h.Drops, dropped)
			}
		}
		for _, x := range s.hits {
			h.Hits = append(h.Hits, locate.Hit{Host: s.Host, Object: x.Object, Verdict: x.Verdict, Stops: x.Stops,
				Rewrote: rewrote(x), Counted: x.Counted, Src: x.Src, Dst: x.Dst})
		}
		h.Routed = s.routed(f, h)
		hosts = append(hosts, h)
	}
	return hosts
}

// rewrote returns what a rule made of a packet; nothing if it is the agent's, which masquerades what leaves the cluster.
func rewrote(h ruletrace.Hit) string {
	if doctor.IsOwnRule(h.Object.Text) {
		return ""
	}
	return h.Rewrote
}

// protos are the numbers of the protocols of probes, without ICMP's of the two families.
var protos = map[byte]string{1: "icmp", 58: "icmp", 6: "tcp", 17: "udp"}

// sight reports whether a frame is of a flow, or finds the way for it.
func sight(f locate.Flow, frame packet.Frame) (s locate.Seen, ok bool) {
	for _, l := range frame.Layers {
		if l.Kind == "eth" {
			s.MACs = append(s.MACs, l.To)
			s.SrcMAC = cmp.Or(s.SrcMAC, l.From)
		}
	}
	if arp, ok := frame.Last("arp"); ok {
		s.Asks = arp.Dst
		if arp.Info == "reply" {
			s.Asks, s.Tells = netip.Addr{}, arp.Src
		}
		return s, true
	}
	ip, isIP := frame.Last("ip")
	if icmp, ok := frame.Last("icmp"); ok && icmp.Dst.IsValid() {
		s.Asks = icmp.Dst
		if ip.Src == icmp.Dst {
			s.Asks, s.Tells = netip.Addr{}, icmp.Dst
		}
		return s, true
	}
	if !isIP || ip.Proto != 0 && protos[ip.Proto] != f.Proto && !isTunnel(frame) {
		return s, false
	}
	s.TTL, s.Size = int(ip.TTL), ip.Size
	switch {
	case ip.Src == f.Src && ip.Dst == f.Dst, isTunnel(frame) && ip.Src == f.Outer[0] && ip.Dst == f.Outer[1]:
		return s, true
	case ip.Src == f.Dst && ip.Dst == f.Src, isTunnel(frame) && ip.Src == f.Outer[1] && ip.Dst == f.Outer[0]:
		s.Back = true
		return s, true
	}
	return s, false
}

// isTunnel reports whether the frame holds a packet that is encrypted.
func isTunnel(f packet.Frame) bool {
	_, wireguard := f.Last("wireguard")
	ip, _ := f.Last("ip")
	return wireguard || ip.Proto == protoESP
}

// protoESP is IPsec's (RFC 4303).
const protoESP = 50
