package filter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// encodeElement returns an element of a set of a type as nf_tables has it: a range is two elements, its first address
// and the one behind its last. One that ends with the last address of all has no second element.
func encodeElement(kind netstate.SetType, e netstate.Element) ([]nftables.SetElement, error) {
	if ofFrames(kind) {
		return encodeSource(kind, e)
	}
	addr := e.Prefix.Addr()
	host := e.Prefix.IsSingleIP() && e.Prefix.IsValid()
	plain := e == netstate.Element{Set: e.Set, Prefix: e.Prefix}
	key := addr.AsSlice()
	switch {
	case kind == netstate.Ranges && plain && e.Prefix.IsValid() && e.Prefix == e.Prefix.Masked():
		elements := []nftables.SetElement{{Key: key}}
		if next := lastOf(e.Prefix).Next(); next.IsValid() {
			elements = append(elements, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
		return elements, nil
	case kind == netstate.Addresses && plain && host:
		return []nftables.SetElement{{Key: key}}, nil
	case kind == netstate.Selves && plain && host:
		return []nftables.SetElement{{Key: append(key, key...)}}, nil
	case kind == netstate.NamedPorts && e.Verdict == "" && e.Extra == "" && host:
		key = append(key, e.Protocol, 0, 0, 0)
		key = binary.BigEndian.AppendUint16(key, e.Port)
		return []nftables.SetElement{{Key: append(key, 0, 0)}}, nil
	case kind == netstate.Verdicts && e.Protocol == 0 && e.Port == 0 && e.Extra == "" && host:
		v, err := encodeVerdict(e.Verdict)
		return []nftables.SetElement{{Key: key, VerdictData: v}}, err
	}
	return nil, misfit(kind, e)
}

func misfit(kind netstate.SetType, e netstate.Element) error {
	return fmt.Errorf("%s does not fit into a set of type %q", e, kind)
}

func encodeVerdict(text string) (*expr.Verdict, error) {
	chain, ok := strings.CutPrefix(text, "goto ")
	switch {
	case text == "return":
		return &expr.Verdict{Kind: expr.VerdictReturn}, nil
	case ok && chain != "":
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}, nil
	}
	return nil, fmt.Errorf("verdict %q: want return, or goto and a chain", text)
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(last)
	return addr
}

// rawElement is an element as the kernel reports it.
type rawElement struct {
	key     []byte
	end     bool // of a range
	verdict string
	extra   string
}

// Attributes of an element that golang.org/x/sys has not.
const (
	elementUserData    = 6  // NFTA_SET_ELEM_USERDATA
	elementExpr        = 7  // NFTA_SET_ELEM_EXPR
	elementObjref      = 9  // NFTA_SET_ELEM_OBJREF
	elementKeyEnd      = 10 // NFTA_SET_ELEM_KEY_END
	elementExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS
)

// extras are what no element of ours has.
var extras = map[uint16]string{
	unix.NFTA_SET_ELEM_TIMEOUT: "timeout", elementUserData: "comment", elementExpr: "expression",
	elementObjref: "object", elementKeyEnd: "key end", elementExpressions: "expressions",
}

// parseElement reads one NFTA_LIST_ELEM.
func parseElement(data []byte) rawElement {
	var e rawElement
	for t, data := range nfnl.Walk(data) {
		switch t {
		case unix.NFTA_SET_ELEM_KEY:
			for _, e.key = range nfnl.Walk(data) {
			}
		case unix.NFTA_SET_ELEM_DATA:
			e.verdict = decodeVerdict(data)
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := binary.BigEndian.Uint32(nfnl.Pad(data, 4))
			if e.end = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0; flags&^unix.NFT_SET_ELEM_INTERVAL_END != 0 {
				e.extra = join(e.extra, fmt.Sprintf("flags %#x", flags))
			}
		default:
			if extra, ok := extras[t]; ok {
				e.extra = join(e.extra, extra)
			}
		}
	}
	return e
}

// decodeVerdict returns the text of a verdict.
func decodeVerdict(data []byte) string {
	attrs, _ := nfnl.ParseAttributes(data)
	v, _ := nfnl.ParseAttributes(attrs[unix.NFTA_DATA_VERDICT])
	code, _ := v.Uint32(unix.NFTA_VERDICT_CODE)
	chain := v.String(unix.NFTA_VERDICT_CHAIN)
	switch int32(code) {
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_GOTO:
		return "goto " + chain
	case unix.NFT_JUMP:
		return "jump " + chain
	}
	return fmt.Sprintf("verdict %d", int32(code))
}

// decodeElements returns the elements of a set of a type, or an error if one cannot be an element of ours.
func decodeElements(
	family netstate.Family, set string, kind netstate.SetType, raw []rawElement,
) ([]netstate.Object, error) {
	if kind == netstate.Ranges {
		return decodeRanges(set, raw)
	}
	objects := make([]netstate.Object, 0, len(raw))
	for _, e := range raw {
		o, ok := decodeKey(family.Bits()/8, kind, e.key)
		if ofFrames(kind) {
			o, ok = decodeSource(kind, e.key)
		}
		if !ok || e.end {
			return nil, fmt.Errorf("set %s has the element %x", set, e.key)
		}
		o.Set, o.Verdict, o.Extra = set, e.verdict, e.extra
		objects = append(objects, o)
	}
	return objects, nil
}

// decodeKey reads the key of an element that is no range; an address has size bytes. Each part of a key is padded to
// four bytes.
func decodeKey(size int, kind netstate.SetType, key []byte) (o netstate.Element, ok bool) {
	if len(key) < size {
		return o, false
	}
	addr, _ := netip.AddrFromSlice(key[:size])
	o.Prefix = netstate.Host(addr)
	switch rest := key[size:]; kind {
	case netstate.Selves:
		return o, bytes.Equal(rest, key[:size])
	case netstate.NamedPorts:
		if len(rest) != 8 || rest[1]|rest[2]|rest[3]|rest[6]|rest[7] != 0 {
			return o, false
		}
		o.Protocol, o.Port = rest[0], binary.BigEndian.Uint16(rest[4:])
		return o, true
	default:
		return o, len(rest) == 0
	}
}

// decodeRanges puts the ends of ranges together. Those that touch stay two: they have two elements of the same address,
// the end of one and the start of the other.
func decodeRanges(set string, raw []rawElement) ([]netstate.Object, error) {
	slices.SortFunc(raw, func(a, b rawElement) int {
		if c := bytes.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		} else if a.end {
			return -1
		}
		return 1
	})
	var objects []netstate.Object
	for len(raw) > 0 {
		start, _ := netip.AddrFromSlice(raw[0].key)
		if raw[0].end && start.IsUnspecified() && raw[0].extra == "" { // nft writes it before the first range
			raw = raw[1:]
			continue
		}
		prefix, rest, ok := cutRange(raw)
		if !ok {
			return nil, fmt.Errorf("set %s has a range at %s that is no prefix", set, start)
		}
		extra := raw[0].extra
		if len(raw)-len(rest) == 2 {
			extra = join(extra, raw[1].extra)
		}
		objects = append(objects, netstate.Element{Set: set, Prefix: prefix, Extra: extra})
		raw = rest
	}
	return objects, nil
}

// cutRange returns the prefix with which raw begins, and what follows it.
func cutRange(raw []rawElement) (p netip.Prefix, rest []rawElement, ok bool) {
	start, ok := netip.AddrFromSlice(raw[0].key)
	if !ok || raw[0].end {
		return p, nil, false
	}
	last, rest := lastOf(netip.PrefixFrom(start, 0)), raw[1:]
	if len(rest) > 0 {
		end, ok := netip.AddrFromSlice(rest[0].key)
		if !ok || !rest[0].end {
			return p, nil, false
		}
		last, rest = end.Prev(), rest[1:]
	}
	p = netip.PrefixFrom(start, commonBits(start, last))
	return p, rest, p.Masked() == p && lastOf(p) == last
}

// commonBits returns how many bits two addresses begin with in common.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return 8 * len(x)
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}
