package rtnl

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Address is struct ifaddrmsg and the attributes behind it (linux/if_addr.h).
type Address struct {
	Index            int          // of the device
	Prefix           netip.Prefix // with the device's own address
	Peer             netip.Prefix // the other end's, where there is one; invalid: none
	Flags            uint32       // IFA_F_…
	Scope            byte         // RT_SCOPE_…
	Metric           int          // of the route to its subnet
	Broadcast        netip.Addr
	Valid, Preferred uint32 // seconds
}

// Forever is a lifetime without an end.
const Forever = math.MaxUint32

// AddrMetric is IFA_RT_PRIORITY of linux/if_addr.h.
const AddrMetric = 9

// ParseAddress reads one address.
func ParseAddress(m []byte) (Address, error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return Address{}, fmt.Errorf("an address of %d bytes: want at least %d", len(m), unix.SizeofIfAddrmsg)
	}
	a := Address{Index: int(binary.NativeEndian.Uint32(m[4:])), Flags: uint32(m[2]), Scope: m[3], Valid: Forever, Preferred: Forever}
	var local, other netip.Addr
	for kind, value := range Attributes(m[unix.SizeofIfAddrmsg:]) {
		switch {
		case kind == unix.IFA_LOCAL:
			local = Addr(value)
		case kind == unix.IFA_ADDRESS:
			other = Addr(value)
		case kind == unix.IFA_BROADCAST:
			a.Broadcast = Addr(value)
		case kind == unix.IFA_FLAGS:
			a.Flags = uint32(Int(value))
		case kind == AddrMetric:
			a.Metric = Int(value)
		case kind == unix.IFA_CACHEINFO && len(value) >= 8:
			a.Preferred, a.Valid = binary.NativeEndian.Uint32(value), binary.NativeEndian.Uint32(value[4:])
		}
	}
	bits := int(m[1])
	switch {
	case !local.IsValid() || local == other:
		a.Prefix = netip.PrefixFrom(other, bits)
	case !other.IsValid():
		a.Prefix = netip.PrefixFrom(local, bits)
	default:
		a.Prefix, a.Peer = netip.PrefixFrom(local, local.BitLen()), netip.PrefixFrom(other, bits)
	}
	return a, nil
}

// Subnet returns the prefix to which the kernel makes a route for the address.
func (a Address) Subnet() netip.Prefix {
	if a.Peer.IsValid() {
		return a.Peer.Masked()
	}
	return a.Prefix.Masked()
}
