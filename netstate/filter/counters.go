package filter

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/google/nftables/expr"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// Dropped returns how many packets each chain has dropped since it was made, by the key of its Filter or Hook. Chains
// that dropped none are left out.
func (f *Filter) Dropped() (map[netstate.Key]uint64, error) {
	r, all := f.reader(), map[netstate.Key]uint64{}
	for _, family := range families {
		for _, rule := range r.Rules(family, netstate.FilterTable) {
			n, ok := dropped(rule)
			if !ok || n == 0 {
				continue
			}
			key := netstate.Filter{Family: family, Name: rule.Chain}.Key()
			if hook, ok := hookNamed(family, rule.Chain); ok {
				key = hook.Key()
			}
			all[key] += n
		}
	}
	return all, r.Err
}

// dropped returns the packets of a rule that counts and drops.
func dropped(rule nfnl.Rule) (packets uint64, ok bool) {
	for _, e := range rule.Exprs {
		if attrs, err := nfnl.ParseAttributes(e.Data); err == nil && e.Name == "counter" && len(attrs[unix.NFTA_COUNTER_PACKETS]) == 8 {
			packets = binary.BigEndian.Uint64(attrs[unix.NFTA_COUNTER_PACKETS])
		}
	}
	last := len(rule.Exprs) - 1
	return packets, last >= 0 && nfnl.IsPrefix([]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, rule.Exprs[last:]) > 0
}
