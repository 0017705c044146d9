package subnet

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestEqual: two leases that say the same are equal, however their data is spaced.
func TestEqual(t *testing.T) {
	with := func(change func(*Lease)) Lease {
		l := Lease{Node: "a", Backend: "vxlan", Stacks: []Stack{{Subnet: netip.MustParsePrefix("10.244.1.0/24"),
			Underlay: netip.MustParseAddr("192.0.2.1"), Data: json.RawMessage(`{"VNI":1}`)}}}
		change(&l)
		return l
	}
	for name, test := range map[string]struct {
		change func(*Lease)
		equal  bool
	}{
		"same":              {func(*Lease) {}, true},
		"spaces":            {func(l *Lease) { l.Stacks[0].Data = json.RawMessage(` { "VNI" : 1 } `) }, true},
		"another node":      {func(l *Lease) { l.Node = "b" }, false},
		"another backend":   {func(l *Lease) { l.Backend = "host-gw" }, false},
		"another subnet":    {func(l *Lease) { l.Stacks[0].Subnet = netip.MustParsePrefix("10.244.2.0/24") }, false},
		"another underlay":  {func(l *Lease) { l.Stacks[0].Underlay = netip.MustParseAddr("192.0.2.2") }, false},
		"other data":        {func(l *Lease) { l.Stacks[0].Data = json.RawMessage(`{"VNI":2}`) }, false},
		"no data":           {func(l *Lease) { l.Stacks[0].Data = nil }, false},
		"one more stack":    {func(l *Lease) { l.Stacks = append(l.Stacks, l.Stacks[0]) }, false},
		"data that is text": {func(l *Lease) { l.Stacks[0].Data = json.RawMessage(`VNI 1`) }, false},
	} {
		a, b := with(func(*Lease) {}), with(test.change)
		if a.Equal(b) != test.equal || b.Equal(a) != test.equal {
			t.Errorf("%s: equal %t and %t, want %t", name, a.Equal(b), b.Equal(a), test.equal)
		}
	}
	null := with(func(l *Lease) { l.Stacks[0].Data = json.RawMessage("null") })
	if !null.Equal(with(func(l *Lease) { l.Stacks[0].Data = nil })) {
		t.Error("null data is not as none")
	}
}

// TestCheckNode: names come from peers and are printed, so what is no host's name or address is refused.
func TestCheckNode(t *testing.T) {
	for name, ok := range map[string]bool{
		"node-1.example.org": true, "Node_1": true, "192.0.2.1": true, "2001:db8::1": true, strings.Repeat("a", 253): true,
		"": false, strings.Repeat("a", 254): false, "a\nb": false, "a b": false, "\x1b[2J": false, "é": false, "a/b": false,
	} {
		if err := CheckNode(name); (err == nil) != ok {
			t.Errorf("%.20q: %v, want that it is a name: %t", name, err, ok)
		}
	}
}

// TestMeaning: every code has a meaning of its own, and an unknown one has one too.
func TestMeaning(t *testing.T) {
	unknown := Code("unknown").Meaning()
	seen := map[string]Code{unknown: "unknown"}
	for _, c := range []Code{Unreadable, OtherBackend, OutsideNetwork, Unroutable, OwnAddress, MixedFamilies, OffLink, DuplicateSubnet,
		DuplicateMAC, DuplicateKey, BackendData, DifferentOptions} {
		if other, ok := seen[c.Meaning()]; ok || c.Meaning() == "" {
			t.Errorf("%s means %q, as %q does", c, c.Meaning(), other)
		}
		seen[c.Meaning()] = c
	}
	if unknown == "" {
		t.Error("an unknown code means nothing")
	}
}

// TestFamily: what has two families gives the one that is asked for, or none.
func TestFamily(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")
	for name, networks := range map[string][]netip.Prefix{"four": {four}, "six": {six}, "dual": {four, six}, "none": nil} {
		var c Config
		var l Lease
		for _, n := range networks {
			c.Pools = append(c.Pools, Pool{Network: n})
			l.Stacks = append(l.Stacks, Stack{Subnet: n})
		}
		for _, want := range []netip.Prefix{four, six} {
			f := netstate.FamilyOf(want.Addr())
			has := name == "dual" || name == map[netstate.Family]string{netstate.IPv4: "four", netstate.IPv6: "six"}[f]
			if p, ok := c.Pool(f); ok != has || ok && p.Network != want {
				t.Errorf("%s: the pool for %s is %s, %t", name, want, p.Network, ok)
			}
			if s, ok := l.Stack(f); ok != has || ok && s.Subnet != want {
				t.Errorf("%s: the stack for %s is %s, %t", name, want, s.Subnet, ok)
			}
		}
	}
}

// TestLeases: the own lease comes first, and subnets outside the networks of pods are left out.
func TestLeases(t *testing.T) {
	lease := func(node string, of ...string) (l Lease) {
		l.Node = node
		for _, s := range of {
			l.Stacks = append(l.Stacks, Stack{Subnet: netip.MustParsePrefix(s)})
		}
		return l
	}
	s := Snapshot{Local: lease("own", "10.244.1.0/24"), Peers: []Lease{lease("wide", "10.0.0.0/8", "fd00::/64"), lease("b", "10.244.2.0/24")}}
	network := Config{Pools: []Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}, {Network: netip.MustParsePrefix("fd00::/56")}}}
	got := s.Leases(network)
	want := []Lease{s.Local, lease("wide", "fd00::/64"), s.Peers[1]}
	if !slices.EqualFunc(got, want, Lease.Equal) || len(s.Peers[0].Stacks) != 2 {
		t.Errorf("got %v, want %v", got, want)
	}
}
