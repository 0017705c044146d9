package netstate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestPortMark: a mark says how the port was made, those of older plugins do so without addresses, and nothing else is a
// mark.
func TestPortMark(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00::2")}
	p := Port{Name: "veth1", Bridge: "cni0", MTU: 1450, MAC: MAC{2}, Pod: MAC{10}, Hairpin: true, Locked: true, Up: true}
	old, now := p, p.WithAddrs(addrs)
	for alias, want := range map[string]Port{
		"twill port of cni0 mtu 1450 address 02:00:00:00:00:00 pod 0a:00:00:00:00:00 hairpin locked": old,
		"twill port of cni0 mtu 1450 address 02:00:00:00:00:00 pod 0a:00:00:00:00:00 hairpin locked " +
			"addrs 10.244.1.2 fd00::2": now,
	} {
		if want.Alias() != alias {
			t.Errorf("the mark is %q, want %q", want.Alias(), alias)
		}
		if got, ok := ParsePort("veth1", alias); !ok || got != want {
			t.Errorf("%q is %+v, %t, want %+v", alias, got, ok, want)
		}
		if got, ok := ParsePort("veth1", alias+" "); ok {
			t.Errorf("an altered mark is %+v", got)
		}
	}
	if got := now.Addresses(); !slices.Equal(got, addrs) || now.Group() != PortGroup {
		t.Errorf("the port has %v in group %d, want %v in group %d", got, now.Group(), addrs, PortGroup)
	}
	if got := old.Addresses(); len(got) > 0 || old.Group() != 0 {
		t.Errorf("the port without addresses has %v in group %d", got, old.Group())
	}
}

// TestPortMarkFull: what the kernel would not take as an ifalias has no addresses.
func TestPortMarkFull(t *testing.T) {
	p := Port{Bridge: strings.Repeat("b", 15), MTU: 65535, Hairpin: true, Isolated: true, Locked: true}
	addr := netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666")
	for n, fits := range map[int]bool{1: true, 2: true, 3: true, 4: false, 9: false} {
		got := p.WithAddrs(slices.Repeat([]netip.Addr{addr}, n))
		if len(got.Addresses()) != map[bool]int{true: n}[fits] || len(got.Alias()) > 255 {
			t.Errorf("with %d addresses: %q", n, got.Alias())
		}
	}
}
