package firewall

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
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
		return when(r.Mark != 0, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, nfnl.Mask(mark),
			nfnl.Compare(expr.CmpOpEq, mark))
	}, func(r *netstate.Rule, c comparison) { r.Mark = binaryutil.NativeEndian.Uint32(nfnl.Pad(c.data, 4)) }},
	{func(r *netstate.Rule) []expr.Any {
		return when(r.Local, &expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
			nfnl.Compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)))
	}, func(r *netstate.Rule, _ comparison) { r.Local = true }},
	nameCondition(expr.MetaKeyIIFNAME, expr.CmpOpEq, func(r *netstate.Rule) *string { return &r.In }),
	nameCondition(expr.MetaKeyOIFNAME, expr.CmpOpEq, func(r *netstate.Rule) *string { return &r.Out }),
	nameCondition(expr.MetaKeyOIFNAME, expr.CmpOpNeq, func(r *netstate.Rule) *string { return &r.NotOut }),
	prefixCondition(expr.CmpOpEq, nfnl.Source, func(r *netstate.Rule) *netip.Prefix { return &r.Src }),
	prefixCondition(expr.CmpOpNeq, nfnl.Source, func(r *netstate.Rule) *netip.Prefix { return &r.NotSrc }),
	prefixCondition(expr.CmpOpEq, nfnl.Destination, func(r *netstate.Rule) *netip.Prefix { return &r.Dst }),
	prefixCondition(expr.CmpOpNeq, nfnl.Destination, func(r *netstate.Rule) *netip.Prefix { return &r.NotDst }),
	{func(r *netstate.Rule) []expr.Any {
		return when(r.Packet.Protocol != 0, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			nfnl.Compare(expr.CmpOpEq, []byte{r.Packet.Protocol}))
	}, func(r *netstate.Rule, c comparison) { r.Packet.Protocol = nfnl.Pad(c.data, 1)[0] }},
	{func(r *netstate.Rule) []expr.Any { // the port is the second half of the header's first word
		return when(r.Packet.Protocol == netstate.UDP && r.Packet.Port != 0,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			nfnl.Compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(r.Packet.Port)))
	}, func(r *netstate.Rule, c comparison) { r.Packet.Port = binaryutil.BigEndian.Uint16(nfnl.Pad(c.data, 2)) }},
	{func(r *netstate.Rule) []expr.Any { // the last, because a look at the routes costs most
		return when(r.Back != "", &expr.Fib{Register: 1, ResultOIFNAME: true, FlagSADDR: true},
			nfnl.Compare(expr.CmpOpEq, nfnl.Pad([]byte(r.Back), unix.IFNAMSIZ)))
	}, func(r *netstate.Rule, c comparison) { r.Back = nfnl.CString(c.data) }},
}

func nameCondition(key expr.MetaKey, op expr.CmpOp, of func(*netstate.Rule) *string) condition {
	return condition{func(r *netstate.Rule) []expr.Any {
		name := nfnl.Pad([]byte(*of(r)), unix.IFNAMSIZ)
		return when(*of(r) != "", &expr.Meta{Key: key, Register: 1}, nfnl.Compare(op, name))
	}, func(r *netstate.Rule, c comparison) { *of(r) = nfnl.CString(c.data) }}
}

// prefixCondition compares an address of a packet.
func prefixCondition(op expr.CmpOp, d nfnl.Direction, of func(*netstate.Rule) *netip.Prefix) condition {
	return condition{func(r *netstate.Rule) []expr.Any {
		if !of(r).IsValid() {
			return nil
		}
		return nfnl.ComparePrefix(op, d, *of(r))
	}, func(r *netstate.Rule, c comparison) {
		bits := 8 * len(c.data)
		if c.mask != nil {
			for bits = 0; bits < 8*len(c.mask) && c.mask[bits/8]&(0x80>>(bits%8)) != 0; bits++ {
			}
		}
		addr, _ := netip.AddrFromSlice(nfnl.Pad(c.data, c.family.Bits()/8))
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
