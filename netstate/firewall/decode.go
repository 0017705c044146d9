package firewall

import (
	"bytes"
	"encoding/hex"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// decode returns the rule that r represents, without counters. Whatever differs from what encode writes goes into the
// rule's Extra, so that an altered rule is another rule.
func decode(r rawRule, family netstate.Family) netstate.Rule {
	var rule netstate.Rule
	exprs := slices.DeleteFunc(slices.Clone(r.exprs), func(e rawExpr) bool { return e.name == "counter" })
	for len(exprs) > 0 {
		n := understand(&rule, exprs, family)
		if n == 0 {
			rule.Extra = join(rule.Extra, exprs[0].name+" "+hex.EncodeToString(exprs[0].data))
			n = 1
		}
		exprs = exprs[n:]
	}
	return visible(rule)
}

// understand reads a condition or the verdict at the beginning of exprs into r. It returns its length, or 0 if it is
// none of ours or comes twice.
func understand(r *netstate.Rule, exprs []rawExpr, family netstate.Family) int {
	if r.Verdict != netstate.None {
		return 0
	}
	c := comparison{family: family}
	for _, e := range exprs[1:min(len(exprs), 3)] {
		attrs, _ := attributes(e.data)
		switch {
		case e.name == "bitwise":
			c.mask = dataValue(attrs[unix.NFTA_BITWISE_MASK])
		case e.name == "cmp" && c.data == nil:
			c.data = dataValue(attrs[unix.NFTA_CMP_DATA])
		}
	}
	for _, o := range conditions {
		next := *r
		o.read(&next, c)
		if o.write(r) == nil {
			if n := isPrefix(o.write(&next), exprs); n > 0 {
				*r = next
				return n
			}
		}
	}
	for v, e := range verdicts {
		if e != nil && isPrefix([]expr.Any{e}, exprs) > 0 {
			r.Verdict = netstate.Verdict(v)
			return 1
		}
	}
	return 0
}

// isPrefix returns the length of want if exprs begin so, otherwise 0.
func isPrefix(want []expr.Any, exprs []rawExpr) int {
	if len(want) > len(exprs) {
		return 0
	}
	for i, e := range want {
		data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		if err != nil {
			return 0
		}
		if w, err := parseExpr(data); err != nil || w.name != exprs[i].name || !equalAttributes(exprs[i].data, w.data) {
			return 0
		}
	}
	return len(want)
}

// visible keeps a rule without condition and verdict from looking like no rule at all.
func visible(r netstate.Rule) netstate.Rule {
	if r == (netstate.Rule{}) {
		r.Extra = "no effect"
	}
	return r
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

// NF_DROP and NF_ACCEPT of linux/netfilter.h; the second is also a chain's policy "accept".
const nfDrop, nfAccept = 0, 1

// verdict returns the attributes of the verdict of an immediate expression.
func (e rawExpr) verdict() attrMap {
	if e.name != "immediate" {
		return nil
	}
	attrs, _ := attributes(e.data)
	data, _ := attributes(attrs[unix.NFTA_IMMEDIATE_DATA])
	v, _ := attributes(data[unix.NFTA_DATA_VERDICT])
	return v
}

// jumpTo returns the chain that an iptables-nft rule jumps or goes to.
func (r rawRule) jumpTo() string {
	for _, e := range r.exprs {
		if chain := e.verdict()[unix.NFTA_VERDICT_CHAIN]; chain != nil {
			return cstring(chain)
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
			code, ok := e.verdict().u32(unix.NFTA_VERDICT_CODE)
			drop = ok && code == nfDrop
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
