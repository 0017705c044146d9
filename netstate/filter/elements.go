package filter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// encodeElement returns an element of a set of a type as nf_tables has it: a range is two elements, its first key and the
// one behind its last. One that ends with the last key of all has no second element.
func encodeElement(kind netstate.SetType, e netstate.Element) ([]nftables.SetElement, error) {
	if ofFrames(kind) {
		return encodeSource(kind, e)
	}
	addr := e.Prefix.Addr()
	host := e.Prefix.IsSingleIP() && e.Prefix.IsValid()
	plain := e == netstate.Element{Set: e.Set, Prefix: e.Prefix}
	key := addr.AsSlice()
	switch {
	case kind == netstate.Ranges:
		if last := lastOf(e); last.IsValid() && e == netstate.Range(e.Set, addr, last) {
			return rangeEnds(key, last.Next().AsSlice()), nil
		}
	case kind == netstate.PortRanges:
		want := netstate.Element{Set: e.Set, Prefix: e.Prefix, Port: e.Port, LastPort: e.LastPort}
		if e == want && e.Prefix == netstate.FamilyOf(addr).All() && e.Port <= e.LastPort {
			var next []byte
			if e.LastPort < math.MaxUint16 {
				next = binary.BigEndian.AppendUint16(nil, e.LastPort+1)
			}
			return rangeEnds(binary.BigEndian.AppendUint16(nil, e.Port), next), nil
		}
	case kind == netstate.Addresses && plain && host:
		return []nftables.SetElement{{Key: key}}, nil
	case kind == netstate.Selves && plain && host:
		return []nftables.SetElement{{Key: append(key, key...)}}, nil
	case kind == netstate.NamedPorts && host &&
		e == netstate.Element{Set: e.Set, Prefix: e.Prefix, Protocol: e.Protocol, Port: e.Port}:
		key = append(key, e.Protocol, 0, 0, 0)
		key = binary.BigEndian.AppendUint16(key, e.Port)
		return []nftables.SetElement{{Key: append(key, 0, 0)}}, nil
	case kind == netstate.Verdicts && host && e == netstate.Element{Set: e.Set, Prefix: e.Prefix, Verdict: e.Verdict}:
		v, err := encodeVerdict(e.Verdict)
		return []nftables.SetElement{{Key: key, VerdictData: v}}, err
	}
	return nil, misfit(kind, e)
}

// lastOf returns the last address of an element of Ranges.
func lastOf(e netstate.Element) netip.Addr {
	if !e.Last.IsValid() && e.Prefix.IsValid() {
		return netstate.LastAddr(e.Prefix)
	}
	return e.Last
}

// rangeEnds returns the two elements of a range, or the only one if no key is behind it.
func rangeEnds(first, next []byte) []nftables.SetElement {
	elements := []nftables.SetElement{{Key: first}}
	if len(next) > 0 {
		elements = append(elements, nftables.SetElement{Key: next, IntervalEnd: true})
	}
	return elements
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
	if kind == netstate.Ranges || kind == netstate.PortRanges {
		return decodeRanges(family, set, kind, raw)
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

// decodeRanges puts the ends of ranges together. Those that touch stay two: they have two elements of the same key, the end
// of one and the start of the other.
func decodeRanges(
	family netstate.Family, set string, kind netstate.SetType, raw []rawElement,
) ([]netstate.Object, error) {
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
		start := raw[0]
		if raw = raw[1:]; start.end && isZero(start.key) && start.extra == "" { // nft writes it before the first range
			continue
		}
		last, extra := bytes.Repeat([]byte{0xff}, len(start.key)), start.extra
		if len(raw) > 0 && raw[0].end {
			last, extra = nfnl.Before(raw[0].key), join(extra, raw[0].extra)
			raw = raw[1:]
		} else if len(raw) > 0 {
			last = nil // two starts: an error
		}
		e, ok := rangeOf(family, set, kind, start.key, last)
		if !ok || start.end {
			return nil, fmt.Errorf("set %s has a range at %x that does not end, or is none", set, start.key)
		}
		e.Extra = extra
		objects = append(objects, e)
	}
	return objects, nil
}

// rangeOf returns the element of a range from its first to its last key.
func rangeOf(
	family netstate.Family, set string, kind netstate.SetType, first, last []byte,
) (e netstate.Element, ok bool) {
	size := family.Bits() / 8
	if kind == netstate.PortRanges {
		size = 2
	}
	switch {
	case len(first) != size || len(last) != size || bytes.Compare(first, last) > 0:
		return e, false
	case kind == netstate.PortRanges:
		return netstate.Element{Set: set, Prefix: family.All(), Port: binary.BigEndian.Uint16(first),
			LastPort: binary.BigEndian.Uint16(last)}, true
	}
	from, _ := netip.AddrFromSlice(first)
	to, _ := netip.AddrFromSlice(last)
	return netstate.Range(set, from, to), true
}

func isZero(key []byte) bool { return len(bytes.Trim(key, "\x00")) == 0 }

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}
