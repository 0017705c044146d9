package firewall

import (
	"encoding/hex"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// decode returns the rule that r represents, without counters. Whatever differs from what encode writes goes into the
// rule's Extra, so that an altered rule is another rule.
func decode(r nfnl.Rule, family netstate.Family) netstate.Rule {
	var rule netstate.Rule
	exprs := slices.DeleteFunc(slices.Clone(r.Exprs), func(e nfnl.Expr) bool { return e.Name == "counter" })
	for len(exprs) > 0 {
		n := understand(&rule, exprs, family)
		if n == 0 {
			rule.Extra = join(rule.Extra, exprs[0].Name+" "+hex.EncodeToString(exprs[0].Data))
			n = 1
		}
		exprs = exprs[n:]
	}
	return visible(rule)
}

// understand reads a condition or the verdict at the beginning of exprs into r. It returns its length, or 0 if it is
// none of ours or comes twice.
func understand(r *netstate.Rule, exprs []nfnl.Expr, family netstate.Family) int {
	if r.Verdict != netstate.None {
		return 0
	}
	c := comparison{family: family}
	for _, e := range exprs[1:min(len(exprs), 3)] {
		attrs, _ := nfnl.ParseAttributes(e.Data)
		switch {
		case e.Name == "bitwise":
			c.mask = nfnl.DataValue(attrs[unix.NFTA_BITWISE_MASK])
		case e.Name == "cmp" && c.data == nil:
			c.data = nfnl.DataValue(attrs[unix.NFTA_CMP_DATA])
		}
	}
	for _, o := range conditions {
		next := *r
		o.read(&next, c)
		if o.write(r) == nil {
			if n := nfnl.IsPrefix(o.write(&next), exprs); n > 0 {
				*r = next
				return n
			}
		}
	}
	for v, e := range verdicts {
		if e != nil && nfnl.IsPrefix([]expr.Any{e}, exprs) > 0 {
			r.Verdict = netstate.Verdict(v)
			return 1
		}
	}
	return 0
}

// visible keeps a rule without condition and verdict from looking like no rule at all.
func visible(r netstate.Rule) netstate.Rule {
	if r == (netstate.Rule{}) {
		r.Extra = "no effect"
	}
	return r
}

// jumpTo returns the chain that an iptables-nft rule jumps or goes to.
func jumpTo(r nfnl.Rule) string {
	for _, e := range r.Exprs {
		if chain := e.Verdict()[unix.NFTA_VERDICT_CHAIN]; chain != nil {
			return nfnl.CString(chain)
		}
	}
	return ""
}

// drops reports whether the rule drops or rejects every packet.
func drops(r nfnl.Rule) bool {
	drop := false
	for _, e := range r.Exprs {
		attrs, _ := nfnl.ParseAttributes(e.Data)
		_, isComment := e.XTComment()
		switch {
		case e.Name == "counter" || isComment:
		case e.Name == "reject" || e.Name == "target" && attrs.String(unix.NFTA_TARGET_NAME) == "REJECT":
			drop = true
		case e.Name == "immediate":
			code, ok := e.Verdict().Uint32(unix.NFTA_VERDICT_CODE)
			drop = ok && code == nfnl.Drop
		default:
			return false
		}
	}
	return drop
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}
