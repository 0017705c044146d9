package filter

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter/grammar"
	"github.com/twill-net/twill/netstate/nfnl"
)

// decode returns rules as a text of the grammar, and reports whether they are in it. What it returns encodes to them.
func decode(family netstate.Family, rules []nfnl.Rule) (text string, ok bool) {
	lines := make([]string, len(rules))
	for i, r := range rules {
		if lines[i], ok = decodeRule(family, r.Exprs); !ok {
			return "", false
		}
	}
	return strings.Join(lines, "\n"), true
}

// decodeRule returns one rule. What depends on no view is said without one.
func decodeRule(family netstate.Family, exprs []nfnl.Expr) (text string, ok bool) {
	for _, view := range []string{"", "backwards", "errors"} {
		text, rest, ended := view, exprs, false
		for len(rest) > 0 && !ended {
			words, n, end := decodeClause(clauses[family][view], family, rest)
			if n == 0 {
				break
			}
			text, rest, ended = text+" "+words, rest[n:], end
		}
		if ended && len(rest) == 0 {
			return strings.TrimPrefix(text, " "), true
		}
	}
	return "", false
}

// decodeClause returns the longest clause with which expressions begin, and how many of them it has; 0 if there is none. A
// lookup in a map, which an end is, is a lookup in a set, too.
func decodeClause(known []clause, family netstate.Family, exprs []nfnl.Expr) (words string, n int, end bool) {
	args := arguments(family, exprs)
	for _, c := range known {
		kind, with := grammar.Of(c.words), args
		if !kind.Arg {
			with = []string{""}
		}
		for _, arg := range with {
			e := c.encode(family, arg)
			if (len(e) > n || len(e) == n && kind.End) && nfnl.IsPrefix(e, exprs) > 0 {
				words, n, end = strings.TrimSuffix(c.words+" "+arg, " "), len(e), kind.End
			}
		}
	}
	return words, n, end
}

// longest is how many expressions a clause has at most: a range of ports.
const longest = 5

// arguments returns what the argument of the clause with which expressions begin may be: what encodes to them is.
func arguments(family netstate.Family, exprs []nfnl.Expr) (all []string) {
	var mask, least []byte
	for _, e := range exprs[:min(len(exprs), longest)] {
		attrs, _ := nfnl.ParseAttributes(e.Data)
		switch e.Name {
		case "lookup":
			all = append(all, "@"+attrs.String(unix.NFTA_LOOKUP_SET))
		case "immediate":
			all = append(all, nfnl.CString(e.Verdict()[unix.NFTA_VERDICT_CHAIN]))
		case "log":
			all = append(all, attrs.String(unix.NFTA_LOG_PREFIX))
		case "bitwise":
			mask = nfnl.DataValue(attrs[unix.NFTA_BITWISE_MASK])
			if len(mask) == 4 {
				bits := binaryutil.NativeEndian.Uint32(mask)
				all = append(all, fmt.Sprintf("%#x", bits), fmt.Sprintf("%#x", ^bits))
			}
		case "cmp":
			data := nfnl.DataValue(attrs[unix.NFTA_CMP_DATA])
			all = append(all, compared(family, data, least, mask)...)
			least = data
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compared returns what data can be that a packet's is compared with, perhaps masked, or after another bound.
func compared(family netstate.Family, data, least, mask []byte) (all []string) {
	number := func(b []byte) (n uint64) {
		for _, x := range b {
			n = n<<8 | uint64(x)
		}
		return n
	}
	switch len(data) {
	case 1, 2:
		all = append(all, fmt.Sprint(number(data)), fmt.Sprintf("%d-%d", number(least), number(data)))
	case 4:
		all = append(all, fmt.Sprint(binaryutil.NativeEndian.Uint32(data)))
	case unix.IFNAMSIZ:
		all = append(all, nfnl.CString(data))
	}
	for word, kind := range etherTypes {
		if bytes.Equal(data, binaryutil.BigEndian.PutUint16(kind)) {
			all = append(all, word)
		}
	}
	sizes := []int{family.Bits() / 8}
	if family == netstate.Ethernet {
		sizes = []int{4, 16}
	}
	for _, size := range sizes {
		addr, ok := netip.AddrFromSlice(nfnl.Pad(slices.Clone(data), size))
		bits := 8 * len(data)
		if mask != nil {
			bits = ones(mask)
		}
		if p := netip.PrefixFrom(addr, bits); ok && len(data) <= size && p.IsValid() {
			all = append(all, p.String())
		}
	}
	return all
}

// ones returns how many of the first bits are set.
func ones(mask []byte) (n int) {
	for n < 8*len(mask) && mask[n/8]&(0x80>>(n%8)) != 0 {
		n++
	}
	return n
}
