package doctor

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// outer is what wraps the packets between this node and a peer.
type outer struct {
	what  string // "VXLAN"
	local netip.Addr
	dev   string // of the underlay
	proto string // udp, ipip or ipv6
	port  int    // UDP, of the peer and of this node
}

// What is in IP packets that hold IP packets, IPv4 and IPv6, by the names that nft prints.
const protoIPIP, protoIPv6 = "ipip", "ipv6"

// outerOf is the wrapping for a peer; false: its packets are routed as they are.
func outerOf(f Facts, w Way) (outer, bool) {
	o := f.Want[netstate.Key{Kind: netstate.KindLink, Name: wantedDevice(f, w.Subnet)}]
	if v, ok := o.(netstate.VXLAN); ok {
		return outer{"VXLAN", v.Local, v.Dev, "udp", v.Port}, true
	}
	u, ok := f.Underlay.Underlay(netstate.FamilyOf(w.Underlay))
	if _, isBridge := o.(netstate.Bridge); o == nil || isBridge || !ok {
		return outer{}, false
	}
	if t, ok := o.(netstate.Tunnel); ok {
		return outer{"IPIP", u.Local, u.Dev, map[bool]string{false: protoIPIP, true: protoIPv6}[t.External], 0}, true
	}
	name := strings.ToLower(f.Lease.Network.Backend)
	if port := f.port(name, w.Underlay.Is4()); port > 0 {
		return outer{map[string]string{"udp": "UDP", "wireguard": "WireGuard"}[name], u.Local, u.Dev, "udp", port}, true
	}
	return outer{}, false
}

// Wrapped is the protocol of a peer's packets on the underlay, udp, ipip or ipv6, and their UDP port; empty: they are not wrapped.
func (f Facts) Wrapped(w Way) (proto string, port int) {
	o, _ := outerOf(f, w)
	return o.proto, o.port
}

// port is the UDP port of net-conf.json's Backend, or flannel's default; 0: the backend has none.
func (f Facts) port(backend string, is4 bool) int {
	var options struct {
		Port, ListenPort, ListenPortV6 int
		Mode                           string
	}
	_ = json.Unmarshal(f.Lease.Network.Options, &options) // the backend has said what is wrong with it
	switch {
	case backend == "udp":
		return cmp.Or(options.Port, 8285)
	case backend == "wireguard" && !is4 && cmp.Or(options.Mode, "separate") == "separate":
		return cmp.Or(options.ListenPortV6, 51821)
	case backend == "wireguard":
		return cmp.Or(options.ListenPort, 51820)
	}
	return 0
}
