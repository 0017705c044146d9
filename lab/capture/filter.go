package capture

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/packet"
)

// filter are the addresses of one or two ends. None match everything.
type filter [][]netip.Addr

func newFilter(l *lab.Lab, ends []string) (filter, error) {
	if len(ends) > 2 {
		return nil, fmt.Errorf("filter %q: want one or two pods, nodes or addresses", ends)
	}
	var f filter
	for _, end := range ends {
		addrs, err := addresses(l, end)
		if err != nil {
			return nil, err
		}
		f = append(f, addrs)
	}
	return f, nil
}

func addresses(l *lab.Lab, end string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(end); err == nil {
		return []netip.Addr{a}, nil
	}
	for _, n := range l.Nodes() {
		if n.Name == end {
			return n.Underlay(), nil
		}
		for _, p := range n.Pods() {
			if p.ID() == end {
				return p.Addrs, nil
			}
		}
	}
	return nil, fmt.Errorf("filter %q: want an address, a node or NODE/POD", end)
}

// match reports whether a header of a packet, outer or inner, has the addresses.
func (f filter) match(p packet.Frame) bool {
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
