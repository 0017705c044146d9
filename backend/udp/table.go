package udp

import (
	"net"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// table says where packets go. It is not changed once it is made, so any number of goroutines read it.
type table struct {
	lengths map[netstate.Family][]int // of the subnets; none of these is in another
	ends    map[netip.Prefix]*net.UDPAddr
	subnets map[netip.Addr][]netip.Prefix // by the node's address
}

// newTable is the way to the peers of a view.
func (b Backend) newTable(view backend.Input) *table {
	t := &table{
		lengths: map[netstate.Family][]int{},
		ends:    map[netip.Prefix]*net.UDPAddr{},
		subnets: map[netip.Addr][]netip.Prefix{},
	}
	peers, _ := backend.Peers(b.networks, view.Node, view.Snapshot)
	for _, p := range peers {
		t.ends[p.Subnet] = net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Underlay, uint16(b.options.Port)))
		t.subnets[p.Underlay] = append(t.subnets[p.Underlay], p.Subnet)
		t.learn(p.Family(), p.Subnet.Bits())
	}
	return t
}

func (t *table) learn(f netstate.Family, bits int) {
	if !slices.Contains(t.lengths[f], bits) {
		t.lengths[f] = append(t.lengths[f], bits)
	}
}

// takes reports whether the node at an address may send a packet of src: its pods' and its own.
func (t *table) takes(from, src netip.Addr) bool {
	for _, p := range t.subnets[from] {
		if p.Contains(src) || src == from {
			return true
		}
	}
	return false
}

// find is where a packet to dst goes, nil if nowhere.
func (t *table) find(dst netip.Addr) *net.UDPAddr {
	for _, bits := range t.lengths[netstate.FamilyOf(dst)] {
		if p, err := dst.Prefix(bits); err == nil {
			if e, ok := t.ends[p]; ok {
				return e
			}
		}
	}
	return nil
}
