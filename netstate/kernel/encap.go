package kernel

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// encapOf is what a route with Outer says of the packets around packets. Hop limit 0 is the inner packet's, as with ipip.
func encapOf(r netstate.Route) *netlink.IP6tnlEncap {
	return &netlink.IP6tnlEncap{Src: r.Outer.AsSlice(), Dst: r.Via.AsSlice()}
}

// decodeEncap reads the attributes of linux/lwtunnel.h's lwtunnel_ip6_t. What a wanted route has not is extra.
func (r *route) decodeEncap() {
	if r.encap == nil {
		return
	}
	if r.encapBy != nl.LWTUNNEL_ENCAP_IP6 || r.gw.IsValid() {
		r.extra.add(true, "encap %d", r.encapBy)
		return
	}
	names := map[uint16]string{nl.LWTUNNEL_IP6_ID: "id", nl.LWTUNNEL_IP6_HOPLIMIT: "hoplimit", nl.LWTUNNEL_IP6_TC: "tc", nl.LWTUNNEL_IP6_FLAGS: "flags"}
	err := attributes(r.encap, func(kind uint16, value []byte) {
		switch kind {
		case nl.LWTUNNEL_IP6_SRC:
			r.outer = addrOf(value)
		case nl.LWTUNNEL_IP6_DST:
			r.gw = addrOf(value)
		case nl.LWTUNNEL_IP6_PAD:
		default:
			name, known := names[kind]
			r.extra.add(!known, "encap attribute %d", kind)
			r.extra.add(known && !zero(value), "%s %#x", name, value)
		}
	})
	r.extra.add(err != nil || !r.outer.IsValid(), "encap without addresses")
}

func zero(value []byte) bool {
	for _, b := range value {
		if b != 0 {
			return false
		}
	}
	return true
}

// encap adds a route's Outer to a request.
func (b *batch) encap(start int, r netstate.Route) {
	value, _ := encapOf(r).Encode() // it has no errors
	b.attribute(start, unix.RTA_ENCAP_TYPE, binary.NativeEndian.AppendUint16(nil, nl.LWTUNNEL_ENCAP_IP6))
	b.attribute(start, unix.RTA_ENCAP|unix.NLA_F_NESTED, value)
}
