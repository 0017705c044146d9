package kernel

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/twill-net/twill/netstate/rtnl"
)

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
			r.extra.add(known && !zero(value), "%s %#x", name, value)
		}
	}
	r.extra.add(!r.outer.IsValid() || !r.gw.IsValid(), "encap without addresses")
}

func zero(value []byte) bool {
	for _, b := range value {
		if b != 0 {
			return false
		}
	}
	return true
}
