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

// Offsets of the addresses in the IP headers, in bytes.
const (
	src4, dst4 = 12, 16
	src6, dst6 = 8, 24
)

// dstPort is the offset of the destination port in the UDP header, in bytes.
const dstPort = 2

// encode is r as native nf_tables expressions, the ones that nft and iptables-nft write too, and a counter.
func encode(r netstate.Rule) ([]expr.Any, error) {
	if r.Extra != "" {
		return nil, fmt.Errorf("rule %q: want a rule without observed extras", r)
	}
	verdict, err := encodeVerdict(r.Verdict)
	if err != nil {
		return nil, err
	}
	var e []expr.Any
	if r.Mark != 0 {
		mark := binaryutil.NativeEndian.PutUint32(r.Mark)
		e = append(e, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, mask(mark), compare(expr.CmpOpEq, mark))
	}
	if r.Local {
		e = append(e, &expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)))
	}
	e = append(e, matchName(expr.MetaKeyIIFNAME, r.In, expr.CmpOpEq)...)
	e = append(e, matchName(expr.MetaKeyOIFNAME, r.NotOut, expr.CmpOpNeq)...)
	e = append(e, matchPrefix(r.Src, src4, src6, expr.CmpOpEq)...)
	e = append(e, matchPrefix(r.NotSrc, src4, src6, expr.CmpOpNeq)...)
	e = append(e, matchPrefix(r.Dst, dst4, dst6, expr.CmpOpEq)...)
	e = append(e, matchPrefix(r.NotDst, dst4, dst6, expr.CmpOpNeq)...)
	e = append(e, matchTransport(r.Packet)...)
	return append(e, &expr.Counter{}, verdict), nil
}

func encodeVerdict(v netstate.Verdict) (expr.Any, error) {
	switch v {
	case netstate.Accept:
		return &expr.Verdict{Kind: expr.VerdictAccept}, nil
	case netstate.Drop:
		return &expr.Verdict{Kind: expr.VerdictDrop}, nil
	case netstate.Return:
		return &expr.Verdict{Kind: expr.VerdictReturn}, nil
	case netstate.Masquerade:
		return &expr.Masq{}, nil
	case netstate.MasqueradeRandom:
		return &expr.Masq{FullyRandom: true}, nil
	}
	return nil, fmt.Errorf("rule verdict %d: want accept, drop, return or masquerade", v)
}

func matchName(key expr.MetaKey, name string, op expr.CmpOp) []expr.Any {
	if name == "" {
		return nil
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, compare(op, data)}
}

func matchTransport(t netstate.Transport) []expr.Any {
	if t.Protocol == 0 {
		return nil
	}
	e := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, compare(expr.CmpOpEq, []byte{t.Protocol})}
	if t.Port == 0 {
		return e
	}
	return append(e, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: dstPort, Len: 2},
		compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(t.Port)))
}

func matchPrefix(p netip.Prefix, off4, off6 uint32, op expr.CmpOp) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	p = p.Masked()
	addr, offset := p.Addr().AsSlice(), off4
	if p.Addr().Is6() {
		offset = off6
	}
	e := []expr.Any{&expr.Payload{
		DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr)),
	}}
	if !p.IsSingleIP() {
		e = append(e, mask(maskBytes(p.Bits(), len(addr))))
	}
	return append(e, compare(op, addr))
}

// maskBytes is a mask of size bytes of which the first bits are set.
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

// comment is the user data that carries s where nft and iptables -S show it.
func comment(s string) []byte {
	return append([]byte{0, byte(len(s) + 1)}, append([]byte(s), 0)...)
}

func tableFamily(family netstate.Family) nftables.TableFamily {
	if family == netstate.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}
