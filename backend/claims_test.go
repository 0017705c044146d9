package backend_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// thing is something that only one node can have.
type thing string

func (t thing) String() string { return string(t) }

// entry is what a node publishes, and whether it has it in the end.
type entry struct {
	node  string
	place string
	has   bool
}

// TestClaims: who has a thing has it in both families, at its own places, whoever else publishes it.
func TestClaims(t *testing.T) {
	order := func(nodes ...string) map[subnet.Claim]int {
		claims := map[subnet.Claim]int{}
		for i, n := range nodes {
			claims[subnet.Claim{Node: n, What: "key"}] = i
		}
		return claims
	}
	for name, test := range map[string]struct {
		own     string // the node that Own is called with
		sure    string // whose it must be
		seen    map[subnet.Claim]int
		entries []entry
	}{
		"the older one":           {entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.2:1", false}}},
		"who was seen first":      {seen: order("b", "a"), entries: []entry{{"a", "192.0.2.1:1", false}, {"b", "192.0.2.2:1", true}}},
		"who was seen, alone":     {seen: order("b"), entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.2:1", false}}},
		"who was never seen":      {seen: order("x", "a"), entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.2:1", false}}},
		"who is sure and first":   {sure: "a", seen: order("b", "a"), entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.2:1", false}}},
		"who is sure":             {sure: "b", seen: order("a", "b"), entries: []entry{{"a", "192.0.2.1:1", false}, {"b", "192.0.2.2:1", true}}},
		"this node":               {own: "n1", sure: "a", entries: []entry{{"a", "192.0.2.1:1", false}}},
		"this node's older name":  {own: "n1", entries: []entry{{"n1", "192.0.2.1:1", false}}},
		"another port":            {entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.1:2", false}}},
		"two names of one place":  {entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "192.0.2.1:1", true}}},
		"both families":           {entries: []entry{{"a", "192.0.2.1:1", true}, {"a", "[2001:db8::1]:1", true}, {"b", "[2001:db8::2]:1", false}}},
		"a name without IPv6":     {seen: order("b", "a"), entries: []entry{{"a", "192.0.2.1:1", true}, {"a", "[2001:db8::1]:1", true}, {"b", "192.0.2.1:1", true}}},
		"a copy in one family":    {entries: []entry{{"a", "192.0.2.1:1", true}, {"b", "[2001:db8::2]:1", false}, {"a", "[2001:db8::1]:1", true}}},
		"a later one takes both":  {seen: order("b", "a"), entries: []entry{{"a", "[2001:db8::1]:1", false}, {"b", "192.0.2.2:1", true}, {"b", "[2001:db8::2]:1", true}}},
		"nothing of the one left": {seen: order("b", "a"), entries: []entry{{"a", "[2001:db8::1]:1", false}, {"b", "192.0.2.2:1", true}, {"c", "[2001:db8::1]:1", false}}},
	} {
		claims := backend.NewClaims(subnet.Snapshot{Claims: test.seen}, func(_ thing, node string) bool { return node == test.sure })
		holderOf := func(what thing) string {
			holder, _ := claims.Holder(what, "", netip.AddrPort{})
			return holder
		}
		if holderOf("key") != "" {
			t.Errorf("%s: somebody has it at first", name)
		}
		holder := test.own
		if test.own != "" {
			claims.Own("key", test.own)
		}
		for _, e := range test.entries {
			claims.Enter("key", e.node, netip.MustParseAddrPort(e.place))
			if e.has && holder == "" {
				holder = e.node
			}
		}
		for _, e := range test.entries {
			if got, denied := claims.Holder("key", e.node, netip.MustParseAddrPort(e.place)); denied == e.has || denied && got != holder {
				t.Errorf("%s: %s at %s is denied: %t, because of %s; want %t, %s", name, e.node, e.place, denied, got, !e.has, holder)
			}
		}
		if holderOf("key") == "" || holderOf("other") != "" {
			t.Errorf("%s: nobody has it, or something else", name)
		}
	}
}
