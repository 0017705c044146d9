package firewall

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// decode returns the rule that encode would write as r, counters left out. Whatever encode would write differently goes
// into the rule's Extra, so that an altered rule is another rule.
func decode(r rawRule, family netstate.Family) netstate.Rule {
	rule := guess(r, family)
	want := encoded(rule, family)
	got := slices.DeleteFunc(slices.Clone(r.exprs), func(e rawExpr) bool { return e.name == "counter" })
	if slices.EqualFunc(got, want, rawExpr.equal) {
		return visible(rule)
	}
	for _, e := range got {
		if !slices.ContainsFunc(want, e.equal) {
			rule.Extra = join(rule.Extra, e.name+" "+hex.EncodeToString(e.data))
		}
	}
	if rule.Extra == "" {
		rule.Extra = "altered" // something is missing, or in another order
	}
	return rule
}

// visible keeps a rule without condition and verdict from looking like no rule at all.
func visible(r netstate.Rule) netstate.Rule {
	if r == (netstate.Rule{}) {
		r.Extra = "no effect"
	}
	return r
}

// encoded returns r as the kernel would return it, without the counter; nil if encode refuses r.
func encoded(r netstate.Rule, family netstate.Family) []rawExpr {
	exprs, err := encode(r)
	if err != nil {
		return nil
	}
	var raw []rawExpr
	for _, e := range exprs {
		data, err := expr.Marshal(byte(tableFamily(family)), e)
		if err != nil {
			return nil
		}
		if x, err := parseExpr(data); err == nil && x.name != "counter" {
			raw = append(raw, x)
		}
	}
	return raw
}

// equal reports whether e is the expression want, of ours, to the last attribute.
func (e rawExpr) equal(want rawExpr) bool {
	return e.name == want.name && equalAttributes(e.data, want.data)
}

// equalAttributes reports whether got has all attributes of want, and others only if they are zero.
func equalAttributes(got, want []byte) bool {
	m, err := attributes(got)
	list, wantErr := netlink.UnmarshalAttributes(want)
	if err != nil || wantErr != nil {
		return false
	}
	for _, w := range list {
		equal := bytes.Equal
		if w.Type&unix.NLA_F_NESTED != 0 { // the kernel leaves this flag out
			equal = equalAttributes
		}
		data, ok := m[w.Type&^attrFlags]
		if !ok || !equal(data, w.Data) {
			return false
		}
		delete(m, w.Type&^attrFlags)
	}
	for _, data := range m {
		if len(bytes.Trim(data, "\x00")) > 0 {
			return false
		}
	}
	return true
}

// guess reads the conditions and the verdict of r and ignores all that it does not know: decode compares.
func guess(r rawRule, family netstate.Family) netstate.Rule {
	var (
		rule netstate.Rule
		load rawExpr
		mask []byte
	)
	for _, e := range r.exprs {
		attrs, _ := attributes(e.data)
		switch e.name {
		case "payload", "meta", "fib":
			load, mask = e, nil
		case "bitwise":
			mask = dataValue(attrs[unix.NFTA_BITWISE_MASK])
		case "cmp":
			op, _ := attrs.u32(unix.NFTA_CMP_OP)
			c := comparison{op == unix.NFT_CMP_NEQ, mask, dataValue(attrs[unix.NFTA_CMP_DATA])}
			loaded, _ := attributes(load.data)
			switch load.name {
			case "payload":
				c.payload(&rule, loaded, family)
			case "meta":
				c.meta(&rule, loaded)
			case "fib":
				rule.Local = true
			}
		case "immediate":
			code, _ := verdict(attrs)
			rule.Verdict = verdicts[code]
		case "masq":
			rule.Verdict = netstate.Masquerade
			if flags, _ := attrs.u32(unix.NFTA_MASQ_FLAGS); flags != 0 {
				rule.Verdict = netstate.MasqueradeRandom
			}
		}
	}
	return rule
}

// comparison is a cmp expression and the mask before it.
type comparison struct {
	not        bool
	mask, data []byte
}

func (c comparison) meta(r *netstate.Rule, load attrMap) {
	switch key, _ := load.u32(unix.NFTA_META_KEY); {
	case key == unix.NFT_META_MARK && len(c.data) == 4:
		r.Mark = binary.NativeEndian.Uint32(c.data)
	case key == unix.NFT_META_IIFNAME:
		r.In = cstring(c.data)
	case key == unix.NFT_META_OIFNAME:
		r.NotOut = cstring(c.data)
	case key == unix.NFT_META_L4PROTO && len(c.data) == 1:
		r.Packet.Protocol = c.data[0]
	}
}

func (c comparison) payload(r *netstate.Rule, load attrMap, family netstate.Family) {
	if base, _ := load.u32(unix.NFTA_PAYLOAD_BASE); base == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		if len(c.data) == 2 {
			r.Packet.Port = binary.BigEndian.Uint16(c.data)
		}
		return
	}
	bits := 8 * len(c.data)
	if c.mask != nil {
		for bits = 0; bits < 8*len(c.mask) && c.mask[bits/8]&(0x80>>(bits%8)) != 0; bits++ {
		}
	}
	full := make([]byte, family.Bits()/8)
	copy(full, c.data)
	addr, _ := netip.AddrFromSlice(full)
	p := netip.PrefixFrom(addr, bits)
	offset, _ := load.u32(unix.NFTA_PAYLOAD_OFFSET)
	src, dst := addressOffsets(family)
	switch {
	case offset == src && c.not:
		r.NotSrc = p
	case offset == src:
		r.Src = p
	case offset == dst && c.not:
		r.NotDst = p
	case offset == dst:
		r.Dst = p
	}
}

// The verdicts' codes of linux/netfilter.h; nfAccept is also a chain's policy "accept".
const nfDrop, nfAccept = 0, 1

var verdicts = map[int32]netstate.Verdict{
	nfDrop: netstate.Drop, nfAccept: netstate.Accept, unix.NFT_RETURN: netstate.Return,
}

// verdict returns the code and the chain of an immediate expression with a verdict; the code is noVerdict without one.
func verdict(immediate attrMap) (code int32, chain string) {
	data, _ := attributes(immediate[unix.NFTA_IMMEDIATE_DATA])
	v, _ := attributes(data[unix.NFTA_DATA_VERDICT])
	n, ok := v.u32(unix.NFTA_VERDICT_CODE)
	if !ok {
		return noVerdict, ""
	}
	return int32(n), cstring(v[unix.NFTA_VERDICT_CHAIN])
}

const noVerdict = 1 << 30

// jumpTo returns the chain that an iptables-nft rule jumps or goes to.
func (r rawRule) jumpTo() string {
	for _, e := range r.exprs {
		attrs, _ := attributes(e.data)
		if _, chain := verdict(attrs); e.name == "immediate" && chain != "" {
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
			code, _ := verdict(attrs)
			drop = code == nfDrop
		default:
			return false
		}
	}
	return drop
}

// dataValue returns the NFTA_DATA_VALUE in nested.
func dataValue(nested []byte) []byte {
	attrs, _ := attributes(nested)
	return attrs[unix.NFTA_DATA_VALUE]
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}
