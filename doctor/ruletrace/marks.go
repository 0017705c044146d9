package ruletrace

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// marks is what packets are marked by: their two addresses, or for ARP and neighbour discovery either of them.
type marks struct{ sets []markSet }

// markSet is a set of the addresses of one family, or of the pairs of them, and the rules that look into it.
type markSet struct {
	name  string
	kind  nftables.SetDatatype
	keys  [][]byte
	rules []condition
}

// condition is a list of expressions that ends with what is looked up in the set.
type condition struct {
	exprs []expr.Any
	arp   bool // it may be asked in the family arp, which has no other header
}

// markRate bounds how many packets are marked in a second at each hook, so that busy pods are not slowed down.
const markRate = 500

func newMarks(pairs []Pair) marks {
	two4 := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	two6 := nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeIP6Addr)
	pair4 := markSet{name: "pairs4", kind: two4, rules: pairs4}
	pair6 := markSet{name: "pairs6", kind: two6, rules: pairs6}
	end4 := markSet{name: "ends4", kind: nftables.TypeIPAddr, rules: ends4}
	end6 := markSet{name: "ends6", kind: nftables.TypeIP6Addr, rules: ends6}
	seen := map[string]bool{}
	add := func(s *markSet, addrs ...netip.Addr) {
		var key []byte
		for _, a := range addrs {
			key = append(key, a.AsSlice()...)
		}
		if id := s.name + string(key); !seen[id] {
			seen[id] = true
			s.keys = append(s.keys, key)
		}
	}
	for _, p := range pairs {
		both, one := &pair4, &end4
		if p.A.Is6() {
			both, one = &pair6, &end6
		}
		add(both, p.A, p.B)
		add(both, p.B, p.A)
		add(one, p.A)
		add(one, p.B)
	}
	var m marks
	for _, s := range []markSet{pair4, pair6, end4, end6} {
		if len(s.keys) > 0 {
			m.sets = append(m.sets, s)
		}
	}
	return m
}

// Headers, and where in them the source address begins; the destination follows. VXLAN's payload begins after the
// headers of UDP (8), VXLAN (8) and Ethernet (14).
const (
	source4, source6        = 12, 8
	arpSender, arpTarget    = 14, 24
	discoveryTarget         = 8
	udpHeader, vxlanHeaders = 8, 30
	ip6Header               = 40
)

var (
	pairs4 = []condition{
		when(network(source4, 8), etherType(unix.ETH_P_IP)),
		when(transport(vxlanHeaders+source4, 8), protocol(unix.IPPROTO_UDP)),
		when(transport(udpHeader+source4, 8), protocol(unix.IPPROTO_UDP)),
		when(transport(source4, 8), protocol(unix.IPPROTO_IPIP)),
	}
	pairs6 = []condition{
		when(network(source6, 32), etherType(unix.ETH_P_IPV6)),
		when(transport(vxlanHeaders+source6, 32), protocol(unix.IPPROTO_UDP)),
		when(transport(udpHeader+source6, 32), protocol(unix.IPPROTO_UDP)),
		when(transport(source6, 32), protocol(unix.IPPROTO_IPV6)),
	}
	ends4 = []condition{
		arp(when(network(arpSender, 4), etherType(unix.ETH_P_ARP))),
		arp(when(network(arpTarget, 4), etherType(unix.ETH_P_ARP))),
		when(transport(vxlanHeaders+arpSender, 4), protocol(unix.IPPROTO_UDP)),
		when(transport(vxlanHeaders+arpTarget, 4), protocol(unix.IPPROTO_UDP)),
	}
	ends6 = []condition{
		when(transport(discoveryTarget, 16), discovery()),
		when(network(source6, 16), discovery()),
		when(network(source6+16, 16), discovery()),
		when(transport(vxlanHeaders+ip6Header+discoveryTarget, 16), protocol(unix.IPPROTO_UDP)),
	}
)

// when returns the condition that something is in the set, if others hold.
func when(key expr.Any, others []expr.Any) condition { return condition{exprs: append(others, key)} }

func arp(c condition) condition {
	c.arp = true
	return c
}

func network(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func transport(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

func etherType(t uint16) []expr.Any {
	value := binary.BigEndian.AppendUint16(nil, t)
	return between(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_1}, value, value)
}

// between holds if a value is in a range. A range of one value is not the same as a comparison for programs that print
// rules: from that they conclude what the next header is, and nft 1.0 gives up if it is that of IPIP.
func between(value expr.Any, low, high []byte) []expr.Any {
	return []expr.Any{
		value,
		&expr.Cmp{Op: expr.CmpOpGte, Register: unix.NFT_REG_1, Data: low},
		&expr.Cmp{Op: expr.CmpOpLte, Register: unix.NFT_REG_1, Data: high},
	}
}

func protocol(p byte) []expr.Any {
	return between(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1}, []byte{p}, []byte{p})
}

// discovery holds for solicitations and advertisements of neighbours.
func discovery() []expr.Any {
	return append(protocol(unix.IPPROTO_ICMPV6), between(transport(0, 1), []byte{135}, []byte{136})...)
}

// mark marks the packet, if few enough have been, and ends the chain at the beginning of the hook.
func mark() []expr.Any {
	return []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: markRate, Unit: expr.LimitTimeSecond, Burst: markRate},
		&expr.Immediate{Register: unix.NFT_REG_1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: unix.NFT_REG_1},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}
