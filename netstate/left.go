package netstate

import "net/netip"

// Left describes the routes that a flannel agent leaves behind without a device of its own.
type Left struct {
	Network  netip.Prefix
	Bits     int  // of each node's subnet
	Gateways bool // the backend routes to peers through the underlay
}

// boot is the protocol of flannel's routes, and of what "ip route add" makes.
const boot = 3

// Made reports whether flannel may have made r: the route of a whole subnet with nothing said but the gateway, or
// the blackhole for the node's own subnet. What is wider, narrower, of another metric or otherwise special is
// somebody else's.
func (l Left) Made(r Route, want State) bool {
	plain := Route{Dst: r.Dst, Via: r.Via, Dev: r.Dev, Metric: DefaultMetric(r.Dst.Addr()), Blackhole: r.Blackhole,
		Protocol: boot}
	switch {
	case r != plain || r.Dst.Bits() != l.Bits || !l.Network.Contains(r.Dst.Addr()):
		return false
	case r.Blackhole:
		return isOwn(r.Dst, want)
	}
	return l.Gateways && r.Via.IsValid()
}

// isOwn reports whether an address in want is on the subnet.
func isOwn(subnet netip.Prefix, want State) bool {
	for _, o := range want {
		if a, ok := o.(Addr); ok && a.Prefix.Masked() == subnet {
			return true
		}
	}
	return false
}
