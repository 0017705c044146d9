package filter

import (
	"slices"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
)

// FuzzDecode: whatever somebody has put into a chain is decoded to what encodes to it, or not at all.
func FuzzDecode(f *testing.F) {
	names := []string{"lookup", "immediate", "log", "bitwise", "cmp", "payload", "meta", "ct", "range", "other"}
	for i, family := range families {
		for _, g := range golden[family] {
			exprs, err := encode(family, g[0])
			if err != nil {
				f.Fatal(err)
			}
			var seed []byte
			for _, e := range exprs {
				attrs, err := marshalled(e)
				if err != nil {
					f.Fatal(err)
				}
				data := attrs[unix.NFTA_EXPR_DATA]
				at := slices.Index(names, attrs.String(unix.NFTA_EXPR_NAME))
				if at < 0 {
					at = len(names) - 1
				}
				seed = append(append(seed, byte(at), byte(len(data))), data...)
			}
			f.Add(uint8(i), seed)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		family := families[int(at)%len(families)]
		var exprs []nfnl.Expr
		for len(data) > 1 { // an expression's name, the size of its data, and these
			size := min(int(data[1]), len(data)-2)
			exprs = append(exprs, nfnl.Expr{Name: names[int(data[0])%len(names)], Data: data[2 : 2+size]})
			data = data[2+size:]
		}
		rules := []nfnl.Rule{{Exprs: exprs}}
		if text, ok := decode(family, rules); ok && textOf(family, text, rules) != text {
			t.Errorf("%q does not encode to what it was decoded from", text)
		}
	})
}

func marshalled(e expr.Any) (nfnl.Attributes, error) {
	data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
	if err != nil {
		return nil, err
	}
	return nfnl.ParseAttributes(data)
}
