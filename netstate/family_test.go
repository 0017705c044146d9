package netstate_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
)

func TestFamilyOf(t *testing.T) {
	for _, c := range []struct {
		addr string
		want netstate.Family
		bits int
		name string
	}{
		{"10.244.1.2", netstate.IPv4, 32, "IPv4"},
		{"fd00::2", netstate.IPv6, 128, "IPv6"},
		{"::ffff:10.244.1.2", netstate.IPv6, 128, "IPv6"},
	} {
		if f := netstate.FamilyOf(netip.MustParseAddr(c.addr)); f != c.want || f.Bits() != c.bits || f.String() != c.name {
			t.Errorf("FamilyOf(%s) = %v with %d bits, want %v with %d", c.addr, f, f.Bits(), c.name, c.bits)
		}
	}
}
