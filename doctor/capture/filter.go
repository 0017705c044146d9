package capture

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/packet"
)

// Filter are the addresses of one or two ends: only IP packets from or to the first, or between the two, are captured,
// encapsulated or not. None match everything.
type Filter [][]netip.Addr

// match reports whether a header of a packet, outer or inner, has the addresses.
func (f Filter) match(p packet.Frame) bool {
	if len(f) == 0 {
		return true
	}
	a, b := f[0], f[len(f)-1]
	return slices.ContainsFunc(p.Layers, func(l packet.Layer) bool {
		if l.Kind != "ip" { // ARP has addresses, too
			return false
		}
		if len(f) == 1 {
			return slices.Contains(a, l.Src) || slices.Contains(a, l.Dst)
		}
		return slices.Contains(a, l.Src) && slices.Contains(b, l.Dst) ||
			slices.Contains(b, l.Src) && slices.Contains(a, l.Dst)
	})
}
