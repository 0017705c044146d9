package choose

import (
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/doctor/capture"
	"github.com/twill-net/twill/lab"
)

// Ends returns the addresses of up to two pods, nodes or addresses of a lab.
func Ends(l *lab.Lab, ends []string) (capture.Filter, error) {
	if len(ends) > 2 {
		return nil, fmt.Errorf("filter %q: want one or two pods, nodes or addresses", ends)
	}
	var f capture.Filter
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
