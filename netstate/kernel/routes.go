package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// route is a route as the kernel sends it.
type route struct {
	dst      netip.Prefix
	gw, src  netip.Addr
	index    int // of the interface, the first next hop's if there are several
	priority int
	mtu      int
	hops     int // 0: not a multipath route
	tos      byte
	table    int
	protocol byte
	scope    byte
	kind     byte // RTN_…
	flags    uint32
	encap    []byte // attributes, of the kind encapBy
	encapBy  uint16
	outer    netip.Addr // source of the IPv6 packet around each packet, whose destination is gw
	extra    extra      // what no wanted route has
}

// routes calls do with each route of the main table, and with those of our protocol in any other.
func (k *Kernel) routes(family netstate.Family, do func(route)) error {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: domains[family]}}
	return k.list("routes", unix.RTM_GETROUTE, header, func(m []byte) error {
		if len(m) >= unix.SizeofRtMsg && m[4] != unix.RT_TABLE_MAIN && m[5] != netstate.Protocol {
			return nil
		}
		r, err := parseRoute(m)
		if err == nil && r.flags&unix.RTM_F_CLONED == 0 { // else what the kernel learned of one destination: its path MTU
			do(r)
		}
		return err
	})
}

// parseRoute reads struct rtmsg and its attributes.
func parseRoute(m []byte) (route, error) {
	if len(m) < unix.SizeofRtMsg {
		return route{}, fmt.Errorf("a route of %d bytes: want at least %d", len(m), unix.SizeofRtMsg)
	}
	r := route{tos: m[3], table: int(m[4]), protocol: m[5], scope: m[6], kind: m[7],
		flags: binary.NativeEndian.Uint32(m[8:])}
	addr := netip.IPv4Unspecified()
	if m[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	for kind, value := range rtnl.Attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			addr = rtnl.Addr(value)
		case unix.RTA_TABLE: // the header has room for the first 256
			r.table = rtnl.Int(value)
		case unix.RTA_CACHEINFO:
			if len(value) >= expires+4 && rtnl.Int(value[expires:]) != 0 {
				r.extra.add(true, "expires")
			}
		case unix.RTA_PREF:
			if n := rtnl.Number(value); n != 0 {
				r.extra.add(true, "pref %d", n)
			}
		case unix.RTA_GATEWAY:
			r.gw = rtnl.Addr(value)
		case unix.RTA_OIF:
			r.index = rtnl.Int(value)
		case unix.RTA_PRIORITY:
			r.priority = rtnl.Int(value)
		case unix.RTA_PREFSRC:
			r.src = rtnl.Addr(value)
		case unix.RTA_METRICS:
			r.metrics(value)
		case unix.RTA_MULTIPATH:
			r.multipath(value)
		case unix.RTA_ENCAP:
			r.encap = value
		case unix.RTA_ENCAP_TYPE:
			if len(value) >= 2 {
				r.encapBy = binary.NativeEndian.Uint16(value)
			}
		default:
			r.extra.add(true, "%s", attributeOfRoute(kind, value))
		}
	}
	r.dst = netip.PrefixFrom(addr, int(m[1]))
	r.decodeEncap()
	return r, nil
}

// expires is where struct rta_cacheinfo of linux/rtnetlink.h has how long a route still lives.
const expires = 8

var routeTables = attributes.Of("route", "")

// attributeOfRoute says in words what no wanted route has.
func attributeOfRoute(kind uint16, value []byte) string {
	a, ok := attributes.Find(routeTables, attributes.Attributes, nil, kind)
	addr, isAddr := netip.AddrFromSlice(value)
	switch {
	case !ok || a.Word == "":
		return fmt.Sprintf("attribute %d", kind)
	case a.Form == attributes.Address && isAddr:
		return a.Word + " " + addr.String()
	}
	return fmt.Sprintf("%s %d", a.Word, rtnl.Number(value))
}

// metrics reads a route's metrics. No wanted route has any but an MTU.
func (r *route) metrics(data []byte) {
	for kind, value := range rtnl.Attributes(data) {
		a, ok := attributes.Find(routeTables, attributes.Attributes, []uint16{unix.RTA_METRICS}, kind)
		switch {
		case kind == unix.RTAX_MTU:
			r.mtu = int(rtnl.Number(value))
		case !ok:
			r.extra.add(true, "metric %d", kind)
		case kind == unix.RTAX_CC_ALGO:
			r.extra.add(true, "%s %s", a.Word, unix.ByteSliceToString(value))
		default:
			r.extra.add(true, "%s %d", a.Word, rtnl.Number(value))
		}
	}
}

// multipath reads struct rtnexthop: its size, flags, hops and interface.
func (r *route) multipath(data []byte) {
	for len(data) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtNexthop || size > len(data) {
			break
		}
		if r.hops++; r.hops == 1 {
			r.index = int(int32(binary.NativeEndian.Uint32(data[4:])))
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	r.extra.add(true, "multipath %d", r.hops)
}

// decodeEncap reads the attributes of linux/lwtunnel.h's lwtunnel_ip6_t. What no wanted route has is extra.
func (r *route) decodeEncap() {
	if r.encap == nil {
		return
	}
	if r.encapBy != nl.LWTUNNEL_ENCAP_IP6 || r.gw.IsValid() {
		r.extra.add(true, "encap %d", r.encapBy)
		return
	}
	names := map[uint16]string{nl.LWTUNNEL_IP6_ID: "id", nl.LWTUNNEL_IP6_HOPLIMIT: "hoplimit",
		nl.LWTUNNEL_IP6_TC: "tc", nl.LWTUNNEL_IP6_FLAGS: "flags"}
	for kind, value := range rtnl.Attributes(r.encap) {
		switch kind {
		case nl.LWTUNNEL_IP6_SRC:
			r.outer = rtnl.Addr(value)
		case nl.LWTUNNEL_IP6_DST:
			r.gw = rtnl.Addr(value)
		case nl.LWTUNNEL_IP6_PAD:
		default:
			name, known := names[kind]
			r.extra.add(!known, "encap attribute %d", kind)
			r.extra.add(known && strings.Trim(string(value), "\x00") != "", "%s %#x", name, value)
		}
	}
	r.extra.add(!r.outer.IsValid() || !r.gw.IsValid(), "encap without addresses")
}

// slot returns the key of a route of the main table that is the only one of its destination and metric.
func (r route) slot() netstate.Key {
	return netstate.Key{Kind: netstate.KindRoute, Prefix: r.dst, Metric: r.priority}
}

func decodeRoute(r route, names map[int]string) netstate.Route {
	o := netstate.Route{
		Dst: r.dst, Via: r.gw, Src: r.src, MTU: r.mtu, Metric: r.priority, Onlink: r.flags&unix.RTNH_F_ONLINK != 0, Outer: r.outer,
		Protocol: int(r.protocol), TOS: int(r.tos), Blackhole: r.kind == unix.RTN_BLACKHOLE,
	}
	if !o.Blackhole && r.hops == 0 { // IPv6 puts blackholes on lo
		o.Dev = names[r.index]
	}
	if r.table != unix.RT_TABLE_MAIN {
		o.Table = r.table
	}
	e := r.extra
	e.add(r.flags&unix.RTNH_F_PERVASIVE != 0, "pervasive")
	e.add(r.kind != unix.RTN_UNICAST && r.kind != unix.RTN_BLACKHOLE, "type %d", r.kind)
	e.add(r.kind == unix.RTN_UNICAST && r.hops == 0 && r.scope != r.usualScope(), "scope %s", netlink.Scope(r.scope))
	o.Extra = e.String()
	return o
}

// usualScope is what a route has if nobody says another: without a gateway IPv4 expects the destination on the link.
func (r route) usualScope() byte {
	if r.dst.Addr().Is4() && !r.gw.IsValid() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}
