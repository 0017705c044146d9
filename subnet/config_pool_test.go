package subnet

import (
	"net/netip"
	"testing"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func testPool(network string, length int, first, last string) Pool {
	return Pool{netip.MustParsePrefix(network), length, netip.MustParseAddr(first), netip.MustParseAddr(last)}
}

// TestKeeps: a node may keep a part of the network of any length that has room for pods.
func TestKeeps(t *testing.T) {
	for _, c := range []struct {
		pool Pool
		keep []netip.Prefix
		not  []netip.Prefix
	}{
		{testPool("10.5.0.0/16", 26, "10.5.1.0", "10.5.3.0"),
			prefixes("10.5.1.0/26", "10.5.0.0/26", "10.5.9.0/24", "10.5.128.0/17", "10.5.0.4/30"),
			prefixes("10.5.0.0/16", "10.0.0.0/8", "10.6.0.0/24", "10.5.0.4/31", "10.5.0.1/24", "fd00::/24")},
		{testPool("fd00::/48", 64, "fd00::", "fd00:0:0:3::"), prefixes("fd00:0:0:9::/66", "fd00:0:0:9::/126"),
			prefixes("fd00::/48", "fd00:0:0:9::/127", "fd01::/64", "10.5.0.0/24")},
	} {
		for _, s := range c.keep {
			if !c.pool.Keeps(s) {
				t.Errorf("a node may not keep %s of %s", s, c.pool)
			}
		}
		for _, s := range append(c.not, netip.Prefix{}) {
			if c.pool.Keeps(s) {
				t.Errorf("a node may keep %s of %s", s, c.pool)
			}
		}
	}
}

func TestPoolContains(t *testing.T) {
	p := testPool("10.5.0.0/16", 24, "10.5.1.0", "10.5.3.0")
	for s, want := range map[string]struct{ contains, fits bool }{
		"10.5.1.0/24": {true, true}, "10.5.3.0/24": {true, true},
		"10.5.0.0/24": {false, true}, "10.5.4.0/24": {false, true},
		"10.5.1.0/25": {}, "10.5.1.7/24": {}, "10.6.1.0/24": {}, "fd00::/24": {},
	} {
		if s := netip.MustParsePrefix(s); p.Contains(s) != want.contains || p.Fits(s) != want.fits {
			t.Errorf("%s: contains %t, fits %t; want %+v", s, p.Contains(s), p.Fits(s), want)
		}
	}
	if p.Contains(netip.Prefix{}) || p.Fits(netip.Prefix{}) {
		t.Error("the pool contains the invalid prefix")
	}
}

func TestPoolFree(t *testing.T) {
	small := testPool("10.5.0.0/16", 24, "10.5.0.0", "10.5.3.0")
	wide := testPool("fd00::/16", 64, "fd00::", "fd00:ffff:ffff:ffff::")
	all := testPool("::/0", 128, "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	for _, tc := range []struct {
		name string
		pool Pool
		n    uint64
		used []netip.Prefix
		want string // empty: none
	}{
		{"the first", small, 0, nil, "10.5.0.0/24"},
		{"the n-th", small, 2, nil, "10.5.2.0/24"},
		{"modulo the count", small, 4003, nil, "10.5.3.0/24"},
		{"used", small, 1, prefixes("10.5.1.0/24"), "10.5.2.0/24"},
		{"partly used", small, 1, prefixes("10.5.1.64/26"), "10.5.2.0/24"},
		{"a wider one", small, 0, prefixes("10.5.0.0/23"), "10.5.2.0/24"},
		{"wraps around", small, 3, prefixes("10.5.3.0/24", "10.5.0.0/24"), "10.5.1.0/24"},
		{"full", small, 1, prefixes("10.5.0.0/22"), ""},
		{"full one by one", small, 1, prefixes("10.5.0.0/24", "10.5.1.0/24", "10.5.2.0/24", "10.5.3.0/24"), ""},
		{"the other family does not count", small, 0, prefixes("fd00::/8", "::/0"), "10.5.0.0/24"},
		{"nor does a long one of it", small, 1, prefixes("fd00::/64", "::a05:100/120"), "10.5.1.0/24"},
		{"nor IPv4 for IPv6", wide, 0, prefixes("0.0.0.0/0", "10.5.0.0/24", "253.0.0.0/32"), "fd00::/64"},
		{"invalid ones do not count", small, 0, []netip.Prefix{{}}, "10.5.0.0/24"},
		{"jumps over 2^32", wide, 5, prefixes("fd00::/32"), "fd00:1::/64"},
		{"subnets of more than 2^64 addresses", testPool("fd00::/16", 48, "fd00::", "fd00:ffff:ffff::"), 5, prefixes("fd00:0:5::/64"), "fd00:0:6::/48"},
		{"subnets of less, over the middle", testPool("fd00::/16", 72, "fd00::", "fd00:ffff:ffff:ffff:ff00::"), 259, nil, "fd00:0:0:1:300::/72"},
		{"jumps over the end", wide, 1 << 47, prefixes("fd00:8000::/17"), "fd00::/64"},
		{"full at once", wide, 77, prefixes("fc00::/7"), ""},
		{"more than can be counted", all, 3, prefixes("::/32"), ""},
	} {
		got, ok := tc.pool.Free(tc.n, tc.used)
		if ok != (tc.want != "") || ok && got.String() != tc.want {
			t.Errorf("%s: got %s %t, want %q", tc.name, got, ok, tc.want)
		}
	}
}
