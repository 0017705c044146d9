package subnet

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

// Pool is the part of a network, of one address family, from which nodes lease subnets. It includes the first subnet,
// which flannel never leases because its bridge once got the network's own address.
type Pool struct {
	Network   netip.Prefix // masked
	SubnetLen int          // prefix length of each subnet
	Min, Max  netip.Addr   // start of the first and of the last subnet that may be leased
}

// Family returns the address family of p.
func (p Pool) Family() netstate.Family { return netstate.FamilyOf(p.Network.Addr()) }

// String returns p for people: "10.244.0.0/16: a /26 from 10.244.0.0 to 10.244.255.192".
func (p Pool) String() string {
	return fmt.Sprintf("%s: a /%d from %s to %s", p.Network, p.SubnetLen, p.Min, p.Max)
}

// Contains reports whether s is one of the subnets that may be leased.
func (p Pool) Contains(s netip.Prefix) bool {
	return p.Fits(s) && !s.Addr().Less(p.Min) && !p.Max.Less(s.Addr())
}

// Keeps reports whether a node may keep s, or have it by a reservation: a part of the network with room for pods, whatever
// its length, inside of Min and Max or not. These say what a node without a lease gets.
func (p Pool) Keeps(s netip.Prefix) bool {
	return s.IsValid() && s == s.Masked() && p.Network.Contains(s.Addr()) && s.Bits() > p.Network.Bits() &&
		s.Bits() <= s.Addr().BitLen()-hostBits
}

// hostBits are the bits of a subnet that tell its addresses apart, at least: it has a tunnel's, a bridge's and a pod's.
const hostBits = 2

// Fits reports whether s is a subnet of the network with the right length, inside of Min and Max or not.
func (p Pool) Fits(s netip.Prefix) bool {
	return s.Bits() == p.SubnetLen && s == s.Masked() && p.Network.Contains(s.Addr())
}

// Count returns the number of subnets that may be leased, at most 2^64-1.
func (p Pool) Count() uint64 {
	if n := p.index(p.Max); n < math.MaxUint64 {
		return n + 1
	}
	return math.MaxUint64
}

// Subnet returns the n-th subnet from Min; n is less than Count.
func (p Pool) Subnet(n uint64) netip.Prefix {
	min, shift := number(p.Min), uint(p.Min.BitLen()-p.SubnetLen)
	return netip.PrefixFrom(min.plus(uint128{lo: n}.shl(shift)).addr(p.Family()), p.SubnetLen)
}

// index returns the number of the subnet that holds a, which is not less than Min; at most 2^64-1.
func (p Pool) index(a netip.Addr) uint64 {
	n := number(a).minus(number(p.Min)).shr(uint(a.BitLen() - p.SubnetLen))
	if n.hi > 0 {
		return math.MaxUint64
	}
	return n.lo
}

// Free returns the first subnet that overlaps none of used. It starts at the n-th (modulo Count), so that nodes which
// look at the same time find different ones, and wraps around. It returns false when all are in use.
func (p Pool) Free(n uint64, used []netip.Prefix) (netip.Prefix, bool) {
	taken, blocks := map[netip.Prefix]bool{}, []netip.Prefix(nil)
	for _, u := range used { // those of the other family, and invalid ones, hold no subnet of p
		if u.Bits() >= p.SubnetLen {
			taken[netip.PrefixFrom(u.Addr(), p.SubnetLen).Masked()] = true
		} else {
			blocks = append(blocks, u.Masked())
		}
	}
	n %= p.Count()
	if s, ok := p.free(n, p.Count(), taken, blocks); ok {
		return s, true
	}
	return p.free(0, n, taken, blocks)
}

// free searches the subnets from the n-th to before the end-th. It skips a block in one step: a used /32 has more /64
// than can be counted.
func (p Pool) free(n, end uint64, taken map[netip.Prefix]bool, blocks []netip.Prefix) (netip.Prefix, bool) {
next:
	for n < end {
		s := p.Subnet(n)
		for _, b := range blocks {
			if b.Contains(s.Addr()) {
				i := p.index(lastAddr(b))
				if i == math.MaxUint64 {
					return netip.Prefix{}, false
				}
				n = i + 1
				continue next
			}
		}
		if !taken[s] {
			return s, true
		}
		n++
	}
	return netip.Prefix{}, false
}

// lastAddr returns the highest address of n.
func lastAddr(n netip.Prefix) netip.Addr {
	host := uint128{math.MaxUint64, math.MaxUint64}.shr(uint(n.Bits()))
	if n.Addr().Is4() {
		host = uint128{lo: math.MaxUint32 >> n.Bits()}
	}
	return number(n.Masked().Addr()).plus(host).addr(netstate.FamilyOf(n.Addr()))
}

// uint128 is an address as a number; an IPv4 address is its 32 bits behind the prefix ::ffff:0:0/96.
type uint128 struct{ hi, lo uint64 }

func number(a netip.Addr) uint128 {
	b := a.As16()
	return uint128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n uint128) addr(f netstate.Family) netip.Addr {
	if f == netstate.IPv4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n.lo))))
	}
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n.hi), n.lo)))
}

func (n uint128) plus(o uint128) uint128 {
	lo, carry := bits.Add64(n.lo, o.lo, 0)
	hi, _ := bits.Add64(n.hi, o.hi, carry)
	return uint128{hi, lo}
}

func (n uint128) minus(o uint128) uint128 {
	lo, borrow := bits.Sub64(n.lo, o.lo, 0)
	hi, _ := bits.Sub64(n.hi, o.hi, borrow)
	return uint128{hi, lo}
}

// shl and shr rely on Go's shifts giving zero for 64 and more.
func (n uint128) shl(k uint) uint128 {
	if k >= 64 {
		return uint128{hi: n.lo << (k - 64)}
	}
	return uint128{n.hi<<k | n.lo>>(64-k), n.lo << k}
}

func (n uint128) shr(k uint) uint128 {
	if k >= 64 {
		return uint128{lo: n.hi >> (k - 64)}
	}
	return uint128{n.hi >> k, n.lo>>k | n.hi<<(64-k)}
}
