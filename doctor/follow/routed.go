package follow

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/unusual"
	"github.com/twill-net/twill/packet"
)

// numbers are the IP protocols of probes.
var numbers = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// The ports of a tunnel's packets, for rules of routing that choose by them: the kernel chooses a source like this one.
const outerSource, vxlanPort = 50000, 8472

// routed asks the kernel of a namespace how it routes the packets of a flow, there and back, inside the tunnel and as
// the tunnel's.
func (s *seenAt) routed(f locate.Flow, h locate.Host) (all []locate.Routed) {
	ports := s.ports(f)
	for _, back := range []bool{false, true} {
		p := unusual.Packet{Src: f.Src, Dst: f.Dst, Proto: numbers[f.Proto], SPort: ports[0], DPort: ports[1], Mark: mark(h)}
		if f.Proto == "icmp" {
			p.Proto = icmpOf(f.Dst)
			p.DPort = s.echoPort(f.Src)
		}
		outer := unusual.Packet{Src: f.Outer[0], Dst: f.Outer[1], Proto: unix.IPPROTO_UDP, SPort: outerSource, DPort: vxlanPort}
		if back {
			p.Src, p.Dst, p.SPort, p.DPort = f.Dst, f.Src, ports[1], ports[0]
			outer.Src, outer.Dst = outer.Dst, outer.Src
		}
		for _, inner := range []bool{true, false} {
			q := p
			if !inner {
				q = outer
			}
			usual := ""
			if inner && !back {
				usual = f.In
			}
			in, ok := s.arrival(q, inner, usual)
			if !ok && inner && f.Mask.IsValid() {
				as := translated(q, f)
				if in, ok = s.arrival(as, inner, ""); in == "" || !s.has(f.Mask) {
					q = as
				}
			}
			if !ok {
				continue
			}
			q.In = in
			if inner && back && in == "" && q.Proto == unix.IPPROTO_ICMPV6 {
				q.Out, _ = s.arrival(unusual.Packet{Src: f.Src, Dst: f.Dst}, true, "") // the kernel answers where it was asked
			}
			there := s.lookup(q, back)
			if in != "" {
				there = append(there, s.reverse(q, back, there)...)
			}
			for _, r := range there {
				r.Outer = !inner
				all = append(all, r)
			}
		}
	}
	return all
}

// arrival returns the device by which the namespace routes a packet that comes in: the last one that it was seen to
// come in by, else the usual one. ok is false if the namespace does not route it.
func (s *seenAt) arrival(p unusual.Packet, inner bool, usual string) (dev string, ok bool) {
	dev = usual
	for _, frame := range s.Frames {
		for i, l := range frame.Frame.Layers {
			isInner := i == lastIP(frame.Frame)
			if l.Kind == "ip" && l.Src == p.Src && l.Dst == p.Dst && !frame.Out && !frame.Stray && isInner == inner {
				dev = frame.Dev
			}
		}
	}
	return dev, p.Src.IsValid() && p.Dst.IsValid() && (dev != "" || s.has(p.Src))
}

func lastIP(f packet.Frame) int {
	last := -1
	for i, l := range f.Layers {
		if l.Kind == "ip" {
			last = i
		}
	}
	return last
}

func (s *seenAt) has(a netip.Addr) bool { return s.id.addrs[a] != "" }

// reverse asks for the way back to the sender of a packet, as the reverse path filter does: as if it came in by the
// device by which the packet leaves, or by lo if it stays here.
func (s *seenAt) reverse(p unusual.Packet, back bool, there []locate.Routed) []locate.Routed {
	p.Src, p.Dst, p.SPort, p.DPort, p.In = p.Dst, p.Src, p.DPort, p.SPort, "lo"
	for _, r := range there {
		if r.Object.Kind == locate.Route && r.Object.Dev != "" && !r.Object.Is("local") {
			p.In = r.Object.Dev
		}
	}
	all := s.lookup(p, back)
	for i := range all {
		all[i].Reverse = true
	}
	return all
}

func (s *seenAt) lookup(p unusual.Packet, back bool) (all []locate.Routed) {
	var route, rule locate.Object
	err := s.Do(func() (err error) {
		route, rule, err = unusual.Routed(p)
		return err
	})
	var refusal syscall.Errno
	refused := errors.As(err, &refusal)
	missing := (refusal == unix.ENETUNREACH || refusal == unix.EHOSTUNREACH) && route.Text == "" && rule.Text == ""
	if missing {
		route = locate.Object{Kind: locate.Route, About: netip.PrefixFrom(p.Dst, p.Dst.BitLen()), Usual: "a route",
			Text: fmt.Sprintf("to %s is missing, and there is no default that takes it (%v)", p.Dst, refusal)}
	}
	for _, o := range []locate.Object{rule, route} {
		if o.Text != "" {
			all = append(all, locate.Routed{Object: o, Back: back, Refuses: refused, Missing: missing && o == route})
		}
	}
	return all
}

// echoPort returns what policy rules take for the destination port of an echo request that the namespace itself sends: the
// kernel keeps its type and code in the same place (union flowi_uli of net/flow.h).
func (s *seenAt) echoPort(src netip.Addr) uint16 {
	switch {
	case !s.has(src):
		return 0
	case src.Is4():
		return uint16(ipv4.ICMPTypeEcho) << 8
	}
	return uint16(ipv6.ICMPTypeEchoRequest) << 8
}

func icmpOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// ports returns those of the flow's first packet that was seen. If none was, they are such as the kernel chooses.
func (s *seenAt) ports(f locate.Flow) [2]uint16 {
	if numbers[f.Proto] == 0 {
		return [2]uint16{}
	}
	for _, frame := range s.Frames {
		src, dst, ok := frame.Frame.Ends()
		if _, isOf := frame.Frame.Last(f.Proto); ok && isOf && src.Addr() == f.Src && dst.Addr() == f.Dst {
			return [2]uint16{src.Port(), dst.Port()}
		}
	}
	return [2]uint16{outerSource, outerSource + 1}
}

// mark returns the mark that a rule of the namespace gave the flow's packets.
func mark(h locate.Host) uint32 {
	i := slices.IndexFunc(h.Hits, func(hit locate.Hit) bool { return hit.Effect.Mark != 0 })
	if i < 0 {
		return 0
	}
	return h.Hits[i].Effect.Mark
}
