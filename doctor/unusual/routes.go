package unusual

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// route is a route as the kernel sends it.
type route struct {
	family        byte
	dst, from     netip.Prefix
	tos           byte
	table         int
	protocol      byte
	scope         byte
	kind          byte // RTN_…
	flags         uint32
	via, src      netip.Addr
	dev           string
	metric        uint64
	nexthop       uint64 // its object's number
	encap         bool
	more          words // metrics, as ip prints them
	hops          []string
	cached        bool
	preferred     byte
	hasPreference bool
}

// twillRoutes is the protocol number of the agent's routes.
const twillRoutes = 116

// rtaNextHop is RTA_NH_ID of linux/rtnetlink.h.
const rtaNextHop = 30

var routeWords = attributes.Of("route", "")

func (s *space) parseRoute(m []byte) (route, error) {
	if len(m) < unix.SizeofRtMsg {
		return route{}, fmt.Errorf("a route of %d bytes: want at least %d", len(m), unix.SizeofRtMsg)
	}
	r := route{family: m[0], tos: m[3], table: int(m[4]), protocol: m[5], scope: m[6], kind: m[7],
		flags: binary.NativeEndian.Uint32(m[8:])}
	none := netip.IPv4Unspecified()
	if r.family == unix.AF_INET6 {
		none = netip.IPv6Unspecified()
	}
	r.dst, r.from = netip.PrefixFrom(none, int(m[1])), netip.PrefixFrom(none, int(m[2]))
	r.cached = r.flags&unix.RTM_F_CLONED != 0
	for kind, value := range rtnl.Attributes(m[unix.SizeofRtMsg:]) {
		s.routeAttribute(&r, kind, value)
	}
	return r, nil
}

func (s *space) routeAttribute(r *route, kind uint16, value []byte) {
	switch kind {
	case unix.RTA_DST:
		r.dst = netip.PrefixFrom(rtnl.Addr(value), r.dst.Bits())
	case unix.RTA_SRC:
		r.from = netip.PrefixFrom(rtnl.Addr(value), r.from.Bits())
	case unix.RTA_TABLE:
		r.table = int(rtnl.Number(value))
	case unix.RTA_GATEWAY:
		r.via = rtnl.Addr(value)
	case unix.RTA_VIA:
		if len(value) > 2 {
			r.via = rtnl.Addr(value[2:]) // of the other family
		}
	case unix.RTA_OIF:
		r.dev = s.names[int(rtnl.Number(value))]
	case unix.RTA_PRIORITY:
		r.metric = rtnl.Number(value)
	case unix.RTA_PREFSRC:
		r.src = rtnl.Addr(value)
	case unix.RTA_ENCAP:
		r.encap = true
	case rtaNextHop:
		r.nexthop = rtnl.Number(value)
	case unix.RTA_PREF:
		r.hasPreference, r.preferred = true, byte(rtnl.Number(value))
	case unix.RTA_METRICS:
		for id, n := range rtnl.Attributes(value) {
			word := fmt.Sprintf("metric-%d", id)
			if a, ok := attributes.Find(routeWords, attributes.Attributes, []uint16{unix.RTA_METRICS}, id); ok {
				word = a.Word
			}
			r.more.add(id != unix.RTAX_CC_ALGO, "%s %d", word, rtnl.Number(n))
		}
	case unix.RTA_MULTIPATH:
		s.multipath(r, value)
	}
}

// multipath reads a list of struct rtnexthop, each with attributes.
func (s *space) multipath(r *route, data []byte) {
	for len(data) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtNexthop || size > len(data) {
			return
		}
		var w words
		w.add(true, "nexthop")
		if via := rtnl.Attribute(data[:size], unix.SizeofRtNexthop, unix.RTA_GATEWAY); via != nil {
			w.add(true, "via %s", rtnl.Addr(via))
		}
		w.add(true, "dev %s weight %d", s.names[int(int32(binary.NativeEndian.Uint32(data[4:])))], int(data[3])+1)
		r.hops = append(r.hops, w.String())
		data = data[min((size+3)&^3, len(data)):]
	}
}

// routesOf returns the routes of a family in all tables, but not what the kernel learned of single destinations. They
// are read once.
func (s *space) routesOf(family byte) ([]route, error) {
	if all, ok := s.routes[family]; ok {
		return all, nil
	}
	messages, err := s.list("routes", unix.RTM_GETROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
	if err != nil {
		return nil, err
	}
	all := make([]route, 0, len(messages))
	for _, m := range messages {
		r, err := s.parseRoute(m)
		if err != nil {
			return nil, err
		}
		if !r.cached && r.family == family {
			all = append(all, r)
		}
	}
	s.routes[family] = all
	return all, nil
}

// unusualRoutes returns routes that do not follow from an address, and refuse packets or that somebody wrote.
func (s *space) unusualRoutes() (all []locate.Object, err error) {
	addresses, err := s.addresses()
	for _, family := range families {
		routes, listErr := s.routesOf(family)
		err = errors.Join(err, listErr)
		for _, r := range routes {
			if !r.usual(addresses) {
				all = append(all, r.object())
			}
		}
	}
	return all, err
}

// accepting are the types of routes that refuse nothing.
var accepting = []byte{unix.RTN_UNICAST, unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_MULTICAST, unix.RTN_ANYCAST}

func (r route) usual(addresses []address) bool {
	switch {
	case r.protocol == twillRoutes:
		return true
	case r.protocol == unix.RTPROT_KERNEL && r.kind == unix.RTN_UNREACHABLE && r.metric == 0xffffffff:
		return true // what older kernels end the IPv6 tables with
	case !slices.Contains(accepting, r.kind):
		return false
	case r.table == unix.RT_TABLE_MAIN && r.protocol == unix.RTPROT_RA:
		return true
	case r.table != unix.RT_TABLE_MAIN && r.table != unix.RT_TABLE_LOCAL:
		return false
	}
	return r.protocol == unix.RTPROT_KERNEL && len(r.more) == 0 && r.follows(addresses)
}

// follows reports whether the kernel makes the route because of an address.
func (r route) follows(addresses []address) bool {
	if r.kind == unix.RTN_MULTICAST || r.kind == unix.RTN_ANYCAST {
		return true
	}
	return slices.ContainsFunc(addresses, func(a address) bool {
		switch {
		case a.dev != r.dev && (r.family != unix.AF_INET6 || r.dev != "lo"):
			return false
		case r.kind == unix.RTN_BROADCAST:
			return a.prefix.Masked().Contains(r.dst.Addr()) || a.Broadcast == r.dst.Addr()
		case r.dst.IsSingleIP():
			return a.local == r.dst.Addr() || a.prefix.Masked() == r.dst
		}
		return a.prefix.Masked() == r.dst
	})
}

func (r route) object() locate.Object {
	return locate.Object{Kind: locate.Route, Dev: r.dev, Via: r.via, Part: routeType(r.kind), Text: r.text(), Usual: "no such route",
		About: r.dst, Fix: r.fix()}
}

// fix returns the command that deletes the route.
func (r route) fix() string {
	var w words
	w.add(true, "%s route del", tool(r.family))
	w.add(r.kind != unix.RTN_UNICAST, "%s", routeType(r.kind))
	w.add(true, "%s", r.destination())
	w.add(r.from.Bits() > 0, "from %s", r.from)
	w.add(r.tos != 0, "tos %#02x", r.tos)
	w.add(r.via.IsValid() && r.via.Is4() == r.dst.Addr().Is4(), "via %s", r.via)
	w.add(r.dev != "" && slices.Contains(accepting, r.kind), "dev %s", r.dev)
	w.add(r.table != unix.RT_TABLE_MAIN, "table %s", tableName(r.table))
	w.add(true, "proto %d", r.protocol)
	w.add(r.scope != 0 && r.family == unix.AF_INET, "scope %d", r.scope)
	w.add(r.metric != 0, "metric %d", r.metric)
	return w.String()
}

// text returns the route as ip route prints it.
func (r route) text() string {
	var w words
	w.add(r.kind != unix.RTN_UNICAST, "%s", routeType(r.kind))
	w.add(true, "%s", r.destination())
	w.add(r.from.Bits() > 0, "from %s", r.from)
	w.add(r.nexthop != 0, "nhid %d", r.nexthop)
	w.add(r.encap, "encap")
	w.add(r.tos != 0, "tos %#02x", r.tos)
	w.add(r.via.IsValid(), "via %s", r.via)
	w.add(r.dev != "", "dev %s", r.dev)
	w.add(r.table != unix.RT_TABLE_MAIN, "table %s", tableName(r.table))
	w.add(r.protocol != unix.RTPROT_BOOT, "proto %s", protocolName(r.protocol))
	w.add(r.scope != 0 && r.family == unix.AF_INET, "scope %s", scopeName(r.scope))
	w.add(r.src.IsValid(), "src %s", r.src)
	w.add(r.metric != 0, "metric %d", r.metric)
	w.add(r.flags&unix.RTNH_F_DEAD != 0, "dead")
	w.add(r.flags&unix.RTNH_F_ONLINK != 0, "onlink")
	w.add(r.flags&unix.RTNH_F_LINKDOWN != 0, "linkdown")
	w = append(w, r.more...)
	w = append(w, r.hops...)
	if names := []string{"medium", "high", "invalid", "low"}; r.hasPreference && int(r.preferred) < len(names) {
		w.add(true, "pref %s", names[r.preferred])
	}
	return w.String()
}

func (r route) destination() string {
	switch {
	case r.dst.Bits() == 0:
		return "default"
	case r.dst.IsSingleIP():
		return r.dst.Addr().String()
	}
	return r.dst.String()
}

func routeType(kind byte) string {
	names := [...]string{"unspec", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable",
		"prohibit", "throw", "nat", "xresolve"}
	if int(kind) < len(names) {
		return names[kind]
	}
	return strconv.Itoa(int(kind))
}

func protocolName(protocol byte) string {
	names := map[byte]string{unix.RTPROT_UNSPEC: "unspec", unix.RTPROT_REDIRECT: "redirect", unix.RTPROT_KERNEL: "kernel",
		unix.RTPROT_BOOT: "boot", unix.RTPROT_STATIC: "static", unix.RTPROT_RA: "ra", unix.RTPROT_ZEBRA: "zebra",
		unix.RTPROT_BIRD: "bird", unix.RTPROT_DHCP: "dhcp", unix.RTPROT_BGP: "bgp", unix.RTPROT_OSPF: "ospf"}
	if name, ok := names[protocol]; ok {
		return name
	}
	return strconv.Itoa(int(protocol))
}

func scopeName(scope byte) string {
	names := map[byte]string{unix.RT_SCOPE_SITE: "site", unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host",
		unix.RT_SCOPE_NOWHERE: "nowhere"}
	if name, ok := names[scope]; ok {
		return name
	}
	return strconv.Itoa(int(scope))
}
