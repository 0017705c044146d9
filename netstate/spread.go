package netstate

import (
	"encoding/binary"
	"net/netip"
)

// spread is how many metrics SpreadMetric has. All are smaller than the metric of a blackhole for the node's own subnet.
const spread = 4095

// SpreadMetric returns the metric from 1 to 4095 of an IPv4 route to dst that few routes to other subnets of its size
// have, the subnet's number among them. The kernel looks for a next hop like a new route's in a hash table (fib_find_info,
// seen on 6.18), and its hash is made of the metric and the device, and not of the gateway: with one metric, the n-th
// route is compared with the n-1 before it. IPv6 routes are not searched for, and keep their metric.
func SpreadMetric(dst netip.Prefix) int {
	if !dst.Addr().Is4() {
		return DefaultMetric(dst.Addr())
	}
	a := dst.Addr().As4()
	return 1 + int(binary.BigEndian.Uint32(a[:])>>(32-dst.Bits())%spread)
}

// PeerRoute returns the route to a node's subnet, whether its metric is the default one or SpreadMetric's.
func (s State) PeerRoute(dst netip.Prefix) (Route, bool) {
	for _, metric := range [...]int{DefaultMetric(dst.Addr()), SpreadMetric(dst)} {
		if r, ok := s[Route{Dst: dst, Metric: metric}.Key()].(Route); ok {
			return r, true
		}
	}
	return Route{}, false
}
