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

// addressOffsets returns where the addresses are in an IP header, in bytes.
func addressOffsets(family netstate.Family) (src, dst uint32) {
	if family == netstate.IPv4 {
		return 12, 16
	}
	return 8, 24
}

// dstPort is the offset of the destination port in the UDP header, in bytes.
const dstPort = 2

// encode returns r as native nf_tables expressions, the ones that nft and iptables-nft write too, and a counter.
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
	e = append(e, matchPrefix(r.Src, false, expr.CmpOpEq)...)
	e = append(e, matchPrefix(r.NotSrc, false, expr.CmpOpNeq)...)
	e = append(e, matchPrefix(r.Dst, true, expr.CmpOpEq)...)
	e = append(e, matchPrefix(r.NotDst, true, expr.CmpOpNeq)...)
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

// matchPrefix compares an address as nft does: only as many bytes as there are, if the prefix ends between two.
func matchPrefix(p netip.Prefix, dst bool, op expr.CmpOp) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	p = p.Masked()
	addr := p.Addr().AsSlice()
	offset, dstOffset := addressOffsets(netstate.FamilyOf(p.Addr()))
	if dst {
		offset = dstOffset
	}
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr))}
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		load.Len = uint32(p.Bits() / 8)
		return []expr.Any{load, compare(op, addr[:load.Len])}
	}
	return []expr.Any{load, mask(maskBytes(p.Bits(), len(addr))), compare(op, addr)}
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

// comment returns the user data that holds s where nft and iptables -S show it.
func comment(s string) []byte {
	return append([]byte{0, byte(len(s) + 1)}, append([]byte(s), 0)...)
}

func tableFamily(family netstate.Family) nftables.TableFamily {
	if family == netstate.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}
