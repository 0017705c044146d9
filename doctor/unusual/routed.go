package unusual

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
)

// Packet is what decides about the way of a packet.
type Packet struct {
	Src, Dst     netip.Addr // Src may be invalid for a packet of this namespace
	In           string     // the device that it arrives on; empty: it is sent from here
	Out          string     // the device that its socket is bound to
	Mark         uint32
	TOS          byte
	Proto        byte   // IPPROTO_…
	SPort, DPort uint16 // of ICMP that is sent from here, DPort has the type and the code, as for the kernel
	UID          uint32
}

func (p Packet) family() byte {
	if p.Dst.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Of linux/rtnetlink.h: ask for the route itself, and for its table's number.
const fibMatch, lookupTable = 0x2000, 0x1000

// Attributes of linux/rtnetlink.h.
const rtaUID, rtaIPProto, rtaSPort, rtaDPort = 25, 27, 28, 29

// Routed returns the route by which the kernel sends a packet, in the calling thread's namespace, and if a policy rule
// that does not come with the kernel chose the table, that rule. The error is what the kernel refuses the packet with:
// ENETUNREACH where there is no route, EINVAL for a blackhole, EACCES for prohibit, EHOSTUNREACH for unreachable or
// where forwarding is off, EXDEV for a source address that the reverse path filter does not let in. The route that
// refuses it is returned, too.
func Routed(p Packet) (found, by locate.Object, err error) {
	s, err := open()
	if err != nil {
		return found, by, fmt.Errorf("find the route to %s: %w", p.Dst, err)
	}
	defer s.conn.Close()
	answer, refusal := s.ask(p)
	rules, err := s.rules(p.family())
	if err != nil {
		return found, by, err
	}
	routes, err := s.routesOf(p.family())
	if err != nil {
		return found, by, err
	}
	// The kernel does not say which rule it was, nor which route refuses: both follow from what it has.
	r, via, ok := s.lookup(p, rules, routes)
	if ok {
		found = s.told(r)
	}
	if via != nil && !slices.Contains(kernelRules(p.family()), via.text()) {
		by = via.object()
	}
	if refusal != nil {
		return found, by, fmt.Errorf("route to %s: %w", p.Dst, refusal)
	}
	if answer.table != r.table && via != nil {
		by = s.ruleFor(p, rules, answer.table)
	}
	return s.told(answer), by, nil
}

// told returns a route that a packet takes. One that is usual has nothing to be put back.
func (s *space) told(r route) locate.Object {
	o := r.object()
	if addresses, err := s.addresses(); err == nil && r.usual(addresses) {
		o.Usual, o.Fix = "", ""
	}
	return o
}

// ruleFor returns the rule that leads a packet to a table, if it does not come with the kernel.
func (s *space) ruleFor(p Packet, rules []rule, table int) locate.Object {
	for _, r := range rules {
		if r.action == actTable && int(r.table) == table && s.matches(r, p) {
			if !slices.Contains(kernelRules(p.family()), r.text()) {
				return r.object()
			}
			break
		}
	}
	return locate.Object{}
}

// ask returns the kernel's answer.
func (s *space) ask(p Packet) (found route, err error) {
	family, bits := p.family(), uint8(p.Dst.BitLen())
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: bits, Tos: p.TOS, Flags: fibMatch | lookupTable}}
	r := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	r.AddData(header)
	r.AddData(nl.NewRtAttr(unix.RTA_DST, p.Dst.AsSlice()))
	if p.Src.IsValid() {
		header.Src_len = bits
		r.AddData(nl.NewRtAttr(unix.RTA_SRC, p.Src.AsSlice()))
	}
	for kind, name := range map[int]string{unix.RTA_IIF: p.In, unix.RTA_OIF: p.Out} {
		if name == "" {
			continue
		}
		dev := s.byName(name)
		if dev.index == 0 {
			return route{}, fmt.Errorf("device %s: %w", name, unix.ENODEV)
		}
		r.AddData(nl.NewRtAttr(kind, nl.Uint32Attr(uint32(dev.index))))
	}
	r.AddData(nl.NewRtAttr(unix.RTA_MARK, nl.Uint32Attr(p.Mark)))
	r.AddData(nl.NewRtAttr(rtaUID, nl.Uint32Attr(p.UID)))
	if p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP || p.Proto == unix.IPPROTO_ICMP ||
		p.Proto == unix.IPPROTO_ICMPV6 { // the kernel knows no others here
		r.AddData(nl.NewRtAttr(rtaIPProto, []byte{p.Proto}))
	}
	if p.SPort != 0 || p.DPort != 0 {
		r.AddData(nl.NewRtAttr(rtaSPort, binary.BigEndian.AppendUint16(nil, p.SPort)))
		r.AddData(nl.NewRtAttr(rtaDPort, binary.BigEndian.AppendUint16(nil, p.DPort)))
	}
	err = s.conn.List(r, func(m []byte) (err error) {
		found, err = s.parseRoute(m)
		return err
	})
	if err == nil && !slices.Contains(accepting, found.kind) { // IPv6 answers with the route
		err = refusals[found.kind]
	}
	return found, err
}

var refusals = map[byte]error{unix.RTN_BLACKHOLE: unix.EINVAL, unix.RTN_UNREACHABLE: unix.EHOSTUNREACH,
	unix.RTN_PROHIBIT: unix.EACCES, unix.RTN_THROW: unix.ENETUNREACH}

// lookup goes through the rules as the kernel does. If no table has a route, it returns the first that leads on to the next
// table (throw).
func (s *space) lookup(p Packet, rules []rule, routes []route) (found route, by *rule, ok bool) {
	var thrown route
	var throws *rule
	for i := 0; i < len(rules); i++ {
		r := &rules[i]
		if !s.matches(*r, p) {
			continue
		}
		switch r.action {
		case actNop:
		case actGoto:
			to := slices.IndexFunc(rules, func(t rule) bool { return t.priority == r.target })
			if to > i {
				i = to - 1
			}
		case actTable:
			best, has := s.longest(p, routes, int(r.table))
			if has && best.kind == unix.RTN_THROW && throws == nil {
				thrown, throws = best, r
			}
			if !has || best.kind == unix.RTN_THROW || best.dst.Bits() <= r.suppressLength {
				continue
			}
			return best, r, true
		default: // it refuses the packet itself
			return route{}, r, false
		}
	}
	return thrown, throws, throws != nil
}

// longest returns the table's route for a packet: of those with the longest prefix, that with its TOS, and the smallest
// metric. A route over a device that is down is dead.
func (s *space) longest(p Packet, routes []route, table int) (best route, ok bool) {
	for _, r := range routes {
		out := p.Out != "" && r.dev != p.Out && r.kind == unix.RTN_UNICAST && len(r.hops) == 0
		if r.table != table || !r.dst.Contains(p.Dst) || r.tos != 0 && r.tos != p.TOS || out ||
			r.flags&unix.RTNH_F_DEAD != 0 || r.from.Bits() > 0 && !r.from.Contains(p.Src) {
			continue
		}
		better := r.dst.Bits() > best.dst.Bits() ||
			r.dst.Bits() == best.dst.Bits() && (r.tos > best.tos || r.tos == best.tos && r.metric < best.metric)
		if !ok || better {
			best, ok = r, true
		}
	}
	return best, ok
}

// matches reports whether a rule is about a packet.
func (s *space) matches(r rule, p Packet) bool {
	in := p.In
	if in == "" {
		in = "lo" // where the kernel says that a namespace's own packets come from
	}
	src := p.Src
	if !src.IsValid() {
		src = netip.IPv4Unspecified()
		if p.family() == unix.AF_INET6 {
			src = netip.IPv6Unspecified()
		}
	}
	holds := r.src.Contains(src) && r.dst.Contains(p.Dst) && (r.tos == 0 || r.tos == p.TOS) &&
		(p.Mark^r.mark)&r.mask == 0 && (r.iif == "" || r.iif == in) && (r.oif == "" || r.oif == p.Out) &&
		(r.proto == 0 || r.proto == p.Proto) && within(r.sport, p.SPort) && within(r.dport, p.DPort) &&
		(r.uids == nil || r.uids[0] <= p.UID && p.UID <= r.uids[1]) && (r.dscp == nil || *r.dscp == p.TOS>>2) &&
		r.tunnel == 0 && !r.l3mdev
	return holds != r.not
}

func within(ports *[2]uint16, port uint16) bool {
	return ports == nil || ports[0] <= port && port <= ports[1]
}
