package filter

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/google/nftables/expr"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// Denied returns how many packets each chain has denied since it was made, by the key of its Filter or Hook: those that it
// has dropped, and those that it has counted and let pass. Chains without any are left out.
func (f *Filter) Denied() (dropped, passed map[netstate.Key]uint64, err error) {
	r := f.reader()
	dropped, passed = map[netstate.Key]uint64{}, map[netstate.Key]uint64{}
	for _, family := range families {
		for _, rule := range r.Rules(family, netstate.FilterTable) {
			n, drops := counted(rule)
			if n == 0 {
				continue
			}
			key := netstate.Filter{Family: family, Name: rule.Chain}.Key()
			if hook, ok := hookNamed(family, rule.Chain); ok {
				key = hook.Key()
			}
			if drops {
				dropped[key] += n
			} else {
				passed[key] += n
			}
		}
	}
	return dropped, passed, r.Err
}

// counted returns the packets that a rule has counted, and whether it drops or resets them.
func counted(rule nfnl.Rule) (packets uint64, drops bool) {
	for _, e := range rule.Exprs {
		if attrs, err := nfnl.ParseAttributes(e.Data); err == nil && e.Name == "counter" && len(attrs[unix.NFTA_COUNTER_PACKETS]) == 8 {
			packets = binary.BigEndian.Uint64(attrs[unix.NFTA_COUNTER_PACKETS])
		}
	}
	last := max(len(rule.Exprs)-1, 0)
	for _, end := range [][]expr.Any{verdict(expr.VerdictDrop)(0, ""), reset.encode(0, "")} {
		drops = drops || nfnl.IsPrefix(end, rule.Exprs[last:]) > 0
	}
	return packets, drops
}
