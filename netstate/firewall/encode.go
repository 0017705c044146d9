package firewall

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// condition is one condition of a rule in nf_tables: a load, perhaps a mask, and a comparison.
type condition struct {
	// write returns the expressions, or nil if r does not have the condition.
	write func(r *netstate.Rule) []expr.Any
	// read sets the condition from a comparison. It was this condition if write returns the same expressions then.
	read func(r *netstate.Rule, c comparison)
}

// comparison is what an address, a mark or another property of a packet is compared with.
type comparison struct {
	family     netstate.Family
	mask, data []byte
}

// conditions are all that rules of ours have, in the order in which they are written.
var conditions = []condition{
	{func(r *netstate.Rule) []expr.Any {
		mark := binaryutil.NativeEndian.PutUint32(r.Mark)
		return when(r.Mark != 0, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, mask(mark), compare(expr.CmpOpEq, mark))
	}, func(r *netstate.Rule, c comparison) { r.Mark = binaryutil.NativeEndian.Uint32(pad(c.data, 4)) }},
	{func(r *netstate.Rule) []expr.Any {
		return when(r.Local, &expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)))
	}, func(r *netstate.Rule, _ comparison) { r.Local = true }},
	nameCondition(expr.MetaKeyIIFNAME, expr.CmpOpEq, func(r *netstate.Rule) *string { return &r.In }),
	nameCondition(expr.MetaKeyOIFNAME, expr.CmpOpNeq, func(r *netstate.Rule) *string { return &r.NotOut }),
	prefixCondition(expr.CmpOpEq, 12, 8, func(r *netstate.Rule) *netip.Prefix { return &r.Src }),
	prefixCondition(expr.CmpOpNeq, 12, 8, func(r *netstate.Rule) *netip.Prefix { return &r.NotSrc }),
	prefixCondition(expr.CmpOpEq, 16, 24, func(r *netstate.Rule) *netip.Prefix { return &r.Dst }),
	prefixCondition(expr.CmpOpNeq, 16, 24, func(r *netstate.Rule) *netip.Prefix { return &r.NotDst }),
	{func(r *netstate.Rule) []expr.Any {
		return when(r.Packet.Protocol != 0, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			compare(expr.CmpOpEq, []byte{r.Packet.Protocol}))
	}, func(r *netstate.Rule, c comparison) { r.Packet.Protocol = pad(c.data, 1)[0] }},
	{func(r *netstate.Rule) []expr.Any { // the port is the second half of the header's first word
		return when(r.Packet.Protocol == netstate.UDP && r.Packet.Port != 0,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(r.Packet.Port)))
	}, func(r *netstate.Rule, c comparison) { r.Packet.Port = binaryutil.BigEndian.Uint16(pad(c.data, 2)) }},
}

func nameCondition(key expr.MetaKey, op expr.CmpOp, of func(*netstate.Rule) *string) condition {
	return condition{func(r *netstate.Rule) []expr.Any {
		name := pad([]byte(*of(r)), unix.IFNAMSIZ)
		return when(*of(r) != "", &expr.Meta{Key: key, Register: 1}, compare(op, name))
	}, func(r *netstate.Rule, c comparison) { *of(r) = cstring(c.data) }}
}

// prefixCondition compares the address at an offset of the IPv4 or the IPv6 header. As nft does, it loads only the
// bytes that a prefix of whole bytes has.
func prefixCondition(op expr.CmpOp, offset4, offset6 uint32, of func(*netstate.Rule) *netip.Prefix) condition {
	return condition{func(r *netstate.Rule) []expr.Any {
		p := of(r).Masked()
		if !p.IsValid() {
			return nil
		}
		addr := p.Addr().AsSlice()
		load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset4}
		if p.Addr().Is6() {
			load.Offset = offset6
		}
		load.Len = uint32(len(addr))
		if p.Bits() > 0 && p.Bits()%8 == 0 {
			load.Len = uint32(p.Bits() / 8)
			return []expr.Any{load, compare(op, addr[:load.Len])}
		}
		return []expr.Any{load, mask(maskBytes(p.Bits(), len(addr))), compare(op, addr)}
	}, func(r *netstate.Rule, c comparison) {
		bits := 8 * len(c.data)
		if c.mask != nil {
			for bits = 0; bits < 8*len(c.mask) && c.mask[bits/8]&(0x80>>(bits%8)) != 0; bits++ {
			}
		}
		addr, _ := netip.AddrFromSlice(pad(c.data, c.family.Bits()/8))
		*of(r) = netip.PrefixFrom(addr, bits)
	}}
}

// verdicts are the ends of rules.
var verdicts = [...]expr.Any{
	netstate.Accept:           &expr.Verdict{Kind: expr.VerdictAccept},
	netstate.Drop:             &expr.Verdict{Kind: expr.VerdictDrop},
	netstate.Return:           &expr.Verdict{Kind: expr.VerdictReturn},
	netstate.Masquerade:       &expr.Masq{},
	netstate.MasqueradeRandom: &expr.Masq{FullyRandom: true},
}

// encode returns r as native nf_tables expressions, the ones that nft and iptables-nft write too, and a counter.
func encode(r netstate.Rule) ([]expr.Any, error) {
	if r.Extra != "" || r.Verdict == netstate.None || int(r.Verdict) >= len(verdicts) {
		return nil, fmt.Errorf("rule %q: want a verdict and no observed extras", r)
	}
	var e []expr.Any
	for _, c := range conditions {
		e = append(e, c.write(&r)...)
	}
	return append(e, &expr.Counter{}, verdicts[r.Verdict]), nil
}

func when(on bool, e ...expr.Any) []expr.Any {
	if on {
		return e
	}
	return nil
}

// pad returns n bytes: b, and zeros.
func pad(b []byte, n int) []byte {
	padded := make([]byte, n)
	copy(padded, b)
	return padded
}

// maskBytes returns size bytes whose first bits are set.
func maskBytes(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

func mask(m []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(m)), Mask: m, Xor: make([]byte, len(m))}
}

func compare(op expr.CmpOp, data []byte) *expr.Cmp {
	return &expr.Cmp{Op: op, Register: 1, Data: data}
}

func tableFamily(family netstate.Family) nftables.TableFamily {
	if family == netstate.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}
