package udp

import (
	"net"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
)

// table says where packets go. It is not changed once it is made, so any number of goroutines read it.
type table struct {
	lengths [2][]int // of the subnets, of which none is in another; IPv6, IPv4
	ends    map[netip.Prefix]*net.UDPAddr
	subnets map[netip.Addr][]netip.Prefix // by the node's address
}

func index(is4 bool) int {
	if is4 {
		return 1
	}
	return 0
}

// newTable is the way to the peers of a view.
func (b Backend) newTable(view backend.View) *table {
	t := &table{ends: map[netip.Prefix]*net.UDPAddr{}, subnets: map[netip.Addr][]netip.Prefix{}}
	peers, _ := backend.Peers(b.networks, view.Node, view.Snapshot)
	for _, p := range peers {
		t.ends[p.Subnet] = net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Underlay, uint16(b.options.Port)))
		t.subnets[p.Underlay] = append(t.subnets[p.Underlay], p.Subnet)
		t.learn(index(p.Is4()), p.Subnet.Bits())
	}
	return t
}

func (t *table) learn(family, bits int) {
	if !slices.Contains(t.lengths[family], bits) {
		t.lengths[family] = append(t.lengths[family], bits)
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
	for _, bits := range t.lengths[index(dst.Is4())] {
		if p, err := dst.Prefix(bits); err == nil {
			if e, ok := t.ends[p]; ok {
				return e
			}
		}
	}
	return nil
}
