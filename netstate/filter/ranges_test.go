package filter

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestRanges: prefixes that touch, up to the last address of all, come and go in any order and stay what they are.
func TestRanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	for seed := range uint64(100) {
		r, want := rand.New(rand.NewPCG(seed, 1)), netstate.State{}
		for _, root := range prefixes(t, "255.255.255.0/24 10.0.0.0/24 0.0.0.0/24 ::/120 "+
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120") {
			want.Add(netstate.Set{Family: netstate.FamilyOf(root.Addr()), Name: block, Type: netstate.Ranges})
			split(r, root, want)
		}
		settle(t, f, want)
	}
	const everything = "0.0.0.0/0 ::/0"
	for _, all := range []string{
		everything, "0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1", "128.0.0.0/1 ff00::/8", everything,
	} {
		want := netstate.State{}
		for _, p := range prefixes(t, all) {
			want.Add(netstate.Set{Family: netstate.FamilyOf(p.Addr()), Name: block, Type: netstate.Ranges},
				netstate.Element{Set: block, Prefix: p})
		}
		settle(t, f, want)
	}
}

// split adds some of the parts of a prefix.
func split(r *rand.Rand, p netip.Prefix, to netstate.State) {
	if whole := p.Bits() == p.Addr().BitLen(); whole || r.IntN(4) == 0 {
		if r.IntN(3) > 0 {
			to.Add(netstate.Element{Set: block, Prefix: p})
		}
		return
	}
	half := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	split(r, half, to)
	split(r, netip.PrefixFrom(netstate.LastAddr(half).Next(), half.Bits()), to)
}
