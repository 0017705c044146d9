package xfrm

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is a policy as the kernel sends it, without attributes.
func message(family uint16, dst netip.Prefix) []byte {
	var p nl.XfrmUserpolicyInfo
	p.Sel.Family, p.Sel.PrefixlenD, p.Priority, p.Dir = family, uint8(dst.Bits()), 116002, 1
	copy(p.Sel.Daddr[:], dst.Addr().AsSlice())
	return p.Serialize()
}

// TestParse: an address that ends in zeros stays of its family.
func TestParse(t *testing.T) {
	for text, family := range map[string]uint16{"fd00:244::/56": unix.AF_INET6, "::/0": unix.AF_INET6,
		"10.244.0.0/16": unix.AF_INET, "0.0.0.0/0": unix.AF_INET} {
		o, ok, err := parse(message(family, netip.MustParsePrefix(text)))
		if err != nil || !ok || o.Dst.String() != text || o.Src.Addr().Is4() != (family == unix.AF_INET) {
			t.Errorf("%s: %s, %t, %v", text, o, ok, err)
		}
	}
	if _, ok, err := parse(message(unix.AF_UNSPEC, netip.MustParsePrefix("0.0.0.0/0"))); ok || err != nil {
		t.Errorf("a policy without a family: %t, %v", ok, err)
	}
	if _, _, err := parse(make([]byte, 7)); err == nil {
		t.Error("a policy of 7 bytes is no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(unix.AF_INET6, netip.MustParsePrefix("fd00:244::/56")))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if o, ok, err := parse(data); ok && err == nil {
			_ = o.Key()
			_ = o.String()
		}
	})
}
