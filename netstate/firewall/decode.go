package firewall

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// field is what a register was loaded with.
type field uint8

const (
	nothing field = iota
	srcAddr
	dstAddr
	packetMark
	inName
	outName
	srcType
	protocol
	toPort
)

// decoder reads a rule's expressions back. It knows the shapes that encode writes; whatever else it meets goes
// into the rule's Extra, so that an altered rule is another rule.
type decoder struct {
	family netstate.Family
	rule   netstate.Rule
	load   field
	size   int    // bytes loaded
	mask   []byte // of a bitwise since the load
}

// decode is the rule that r says. Counters are left out.
func decode(r rawRule, family netstate.Family) netstate.Rule {
	d := decoder{family: family}
	for _, e := range r.exprs {
		if !d.expr(e) {
			d.load = nothing
			d.rule.Extra = join(d.rule.Extra, e.name+" "+hex.EncodeToString(e.data))
		}
	}
	return visible(d.rule)
}

// visible keeps a rule without condition and verdict from looking like no rule at all.
func visible(r netstate.Rule) netstate.Rule {
	if r == (netstate.Rule{}) {
		r.Extra = "no effect"
	}
	return r
}

// expr takes one expression in and says whether it was understood to the last attribute.
func (d *decoder) expr(e rawExpr) bool {
	if e.name == "counter" {
		return true
	}
	attrs, err := attributes(e.data)
	if err != nil || d.rule.Verdict != netstate.None {
		return false
	}
	switch e.name {
	case "payload":
		return d.payload(attrs)
	case "meta":
		return d.meta(attrs)
	case "fib": // result 3: address type; flags 1: of the source address
		d.load = srcType
		return attrs.are(map[uint16]uint32{1: unix.NFT_REG_1, 2: 3, 3: 1})
	case "bitwise":
		return d.bitwise(attrs)
	case "cmp":
		return d.cmp(attrs)
	case "immediate":
		return d.verdict(attrs)
	case "masq":
		return d.masquerade(attrs)
	}
	return false
}

// are says whether m holds exactly these numbers; attributes that are not named must be zero.
func (m attrMap) are(want map[uint16]uint32) bool {
	for t, data := range m {
		if len(data) != 4 || binary.BigEndian.Uint32(data) != want[t] {
			return false
		}
	}
	for t := range want {
		if _, ok := m[t]; !ok {
			return false
		}
	}
	return true
}

func (d *decoder) payload(attrs attrMap) bool {
	offset, _ := attrs.u32(unix.NFTA_PAYLOAD_OFFSET)
	size, _ := attrs.u32(unix.NFTA_PAYLOAD_LEN)
	src, dst, full := uint32(src4), uint32(dst4), 4
	if d.family == netstate.IPv6 {
		src, dst, full = src6, dst6, 16
	}
	d.load, d.size, d.mask = nothing, int(size), nil
	if base, _ := attrs.u32(unix.NFTA_PAYLOAD_BASE); base == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		d.load = toPort
		return attrs.are(map[uint16]uint32{
			unix.NFTA_PAYLOAD_DREG: unix.NFT_REG_1, unix.NFTA_PAYLOAD_BASE: base,
			unix.NFTA_PAYLOAD_OFFSET: dstPort, unix.NFTA_PAYLOAD_LEN: 2,
		})
	}
	switch offset {
	case src:
		d.load = srcAddr
	case dst:
		d.load = dstAddr
	}
	return d.load != nothing && 0 < d.size && d.size <= full && attrs.are(map[uint16]uint32{
		unix.NFTA_PAYLOAD_DREG: unix.NFT_REG_1, unix.NFTA_PAYLOAD_BASE: unix.NFT_PAYLOAD_NETWORK_HEADER,
		unix.NFTA_PAYLOAD_OFFSET: offset, unix.NFTA_PAYLOAD_LEN: size,
	})
}

func (d *decoder) meta(attrs attrMap) bool {
	key, _ := attrs.u32(unix.NFTA_META_KEY)
	d.load, d.mask = nothing, nil
	switch key {
	case unix.NFT_META_MARK:
		d.load = packetMark
	case unix.NFT_META_IIFNAME:
		d.load = inName
	case unix.NFT_META_OIFNAME:
		d.load = outName
	case unix.NFT_META_L4PROTO:
		d.load = protocol
	}
	return d.load != nothing && attrs.are(map[uint16]uint32{
		unix.NFTA_META_DREG: unix.NFT_REG_1, unix.NFTA_META_KEY: key,
	})
}

// bitwise accepts a plain "and" with the register that was just loaded.
func (d *decoder) bitwise(attrs attrMap) bool {
	m, xor := dataValue(attrs[unix.NFTA_BITWISE_MASK]), dataValue(attrs[unix.NFTA_BITWISE_XOR])
	delete(attrs, unix.NFTA_BITWISE_MASK)
	delete(attrs, unix.NFTA_BITWISE_XOR)
	ok := d.load != nothing && d.mask == nil && len(m) > 0 && bytes.Equal(xor, make([]byte, len(m)))
	d.mask = m
	return ok && attrs.are(map[uint16]uint32{
		unix.NFTA_BITWISE_SREG: unix.NFT_REG_1, unix.NFTA_BITWISE_DREG: unix.NFT_REG_1,
		unix.NFTA_BITWISE_LEN: uint32(len(m)),
	})
}

func (d *decoder) cmp(attrs attrMap) bool {
	data := dataValue(attrs[unix.NFTA_CMP_DATA])
	op, _ := attrs.u32(unix.NFTA_CMP_OP)
	reg, _ := attrs.u32(unix.NFTA_CMP_SREG)
	if len(attrs) != 3 || reg != unix.NFT_REG_1 || op > unix.NFT_CMP_NEQ {
		return false
	}
	load := d.load
	d.load = nothing
	return d.condition(load, op == unix.NFT_CMP_NEQ, data)
}

// condition sets the field of the rule that a comparison stands for; each can be set once.
func (d *decoder) condition(load field, not bool, data []byte) bool {
	r := &d.rule
	switch {
	case load == srcAddr && not:
		return d.prefix(&r.NotSrc, data)
	case load == srcAddr:
		return d.prefix(&r.Src, data)
	case load == dstAddr && not:
		return d.prefix(&r.NotDst, data)
	case load == dstAddr:
		return d.prefix(&r.Dst, data)
	case load == packetMark && !not && r.Mark == 0 && len(data) == 4 && bytes.Equal(data, d.mask):
		r.Mark = binary.NativeEndian.Uint32(data)
	case load == outName && not && r.NotOut == "" && isName(data):
		r.NotOut = cstring(data)
	case load == srcType && !not && !r.Local && len(data) == 4 && binary.NativeEndian.Uint32(data) == unix.RTN_LOCAL:
		r.Local = true
	default:
		return !not && d.mask == nil && d.guarded(load, data)
	}
	return true
}

// guarded is condition for what only rules about wrapped packets have.
func (d *decoder) guarded(load field, data []byte) bool {
	r := &d.rule
	switch {
	case load == inName && r.In == "" && isName(data):
		r.In = cstring(data)
	case load == protocol && r.Packet.Protocol == 0 && len(data) == 1:
		r.Packet.Protocol = data[0]
	case load == toPort && r.Packet.Protocol == netstate.UDP && r.Packet.Port == 0 && len(data) == 2:
		r.Packet.Port = binary.BigEndian.Uint16(data)
	default:
		return false
	}
	return true
}

// isName reports whether data are a whole name and nothing behind it; one without a zero stands for all that begin so.
func isName(data []byte) bool {
	name := bytes.TrimRight(data, "\x00")
	return len(name) < len(data) && !bytes.Contains(name, []byte{0})
}

// prefix sets p to data and the mask of the load, which may be shorter than an address: whole bytes of it.
func (d *decoder) prefix(p *netip.Prefix, data []byte) bool {
	bits := 8 * d.size
	if d.mask != nil {
		for bits = 0; bits < 8*len(d.mask) && d.mask[bits/8]&(0x80>>(bits%8)) != 0; bits++ {
		}
		if !bytes.Equal(d.mask, maskBytes(bits, len(d.mask))) {
			return false
		}
	}
	full := make([]byte, 4)
	if d.family == netstate.IPv6 {
		full = make([]byte, 16)
	}
	copy(full, data)
	addr, _ := netip.AddrFromSlice(full)
	if p.IsValid() || len(data) != d.size {
		return false
	}
	*p = netip.PrefixFrom(addr, bits)
	return p.IsValid() && *p == p.Masked()
}

func (d *decoder) verdict(attrs attrMap) bool {
	data, _ := attributes(attrs[unix.NFTA_IMMEDIATE_DATA])
	v, _ := attributes(data[unix.NFTA_DATA_VERDICT])
	code, ok := v.u32(unix.NFTA_VERDICT_CODE)
	delete(attrs, unix.NFTA_IMMEDIATE_DATA)
	if !ok || len(v) != 1 || len(data) != 1 || !attrs.are(map[uint16]uint32{unix.NFTA_IMMEDIATE_DREG: unix.NFT_REG_VERDICT}) {
		return false
	}
	switch int32(code) {
	case unix.NFT_RETURN:
		d.rule.Verdict = netstate.Return
	case nfAccept:
		d.rule.Verdict = netstate.Accept
	case nfDrop:
		d.rule.Verdict = netstate.Drop
	default:
		return false
	}
	return true
}

// NF_DROP and NF_ACCEPT of linux/netfilter.h; the second is also a chain's policy "accept".
const nfDrop, nfAccept = 0, 1

func (d *decoder) masquerade(attrs attrMap) bool {
	if attrs.are(nil) {
		d.rule.Verdict = netstate.Masquerade
		return true
	}
	d.rule.Verdict = netstate.MasqueradeRandom
	return attrs.are(map[uint16]uint32{unix.NFTA_MASQ_FLAGS: unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY})
}

// jumpTo is the chain that an iptables-nft rule jumps or goes to.
func (r rawRule) jumpTo() string {
	for _, e := range r.exprs {
		if e.name != "immediate" {
			continue
		}
		attrs, _ := attributes(e.data)
		data, _ := attributes(attrs[unix.NFTA_IMMEDIATE_DATA])
		verdict, _ := attributes(data[unix.NFTA_DATA_VERDICT])
		if chain := cstring(verdict[unix.NFTA_VERDICT_CHAIN]); chain != "" {
			return chain
		}
	}
	return ""
}

// drops reports whether the rule drops or rejects every packet.
func (r rawRule) drops() bool {
	drop := false
	for _, e := range r.exprs {
		attrs, _ := attributes(e.data)
		_, isComment := e.xtComment()
		switch {
		case e.name == "counter" || isComment:
		case e.name == "reject" || e.name == "target" && cstring(attrs[unix.NFTA_TARGET_NAME]) == "REJECT":
			drop = true
		case e.name == "immediate":
			data, _ := attributes(attrs[unix.NFTA_IMMEDIATE_DATA])
			verdict, _ := attributes(data[unix.NFTA_DATA_VERDICT])
			code, ok := verdict.u32(unix.NFTA_VERDICT_CODE)
			drop = ok && code == nfDrop
		default:
			return false
		}
	}
	return drop
}

// dataValue is the NFTA_DATA_VALUE in nested; nil if anything else is there.
func dataValue(nested []byte) []byte {
	attrs, _ := attributes(nested)
	if len(attrs) != 1 {
		return nil
	}
	return attrs[unix.NFTA_DATA_VALUE]
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}
