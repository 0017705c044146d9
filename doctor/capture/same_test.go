package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/packet"
)

// ipv4 is a packet with some bytes behind its header.
func ipv4(id uint16, ttl byte, payload ...byte) []byte {
	p := make([]byte, ipv4Size, ipv4Size+len(payload))
	p[0], p[8], p[9], p[11], p[12], p[16] = 0x45, ttl, 17, ttl, 10, 11
	binary.BigEndian.PutUint16(p[2:], uint16(ipv4Size+len(payload)))
	binary.BigEndian.PutUint16(p[4:], id)
	return append(p, payload...)
}

func ipv6(hops byte, payload ...byte) []byte {
	p := make([]byte, ipv6Size)
	p[0], p[6], p[7], p[8] = 0x60, 17, hops, 0xfd
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	return append(p, payload...)
}

func TestSamePacket(t *testing.T) {
	arp := make([]byte, arpSize)
	arp[1], arp[27] = 1, 9
	other := slices.Clone(arp)
	other[27] = 8
	inner := ipv4(7, 63, 1, 2, 3, 4)
	vxlan := ipv4(1, 64, append(make([]byte, udpSize+vxlanSize+ethernetSize), inner...)...)
	padded := slices.Concat(inner, make([]byte, 40))
	for name, c := range map[string]struct {
		a, b []byte
		want bool
	}{
		"itself":              {inner, inner, true},
		"zeros behind it":     {inner, padded, true},
		"routed":              {ipv4(7, 64, 1, 2, 3, 4), inner, true},
		"another":             {ipv4(8, 63, 1, 2, 3, 4), inner, false},
		"other bytes":         {ipv4(7, 63, 1, 2, 3, 5), inner, false},
		"other bytes, padded": {ipv4(7, 63, 1, 2, 3, 5), padded, false},
		"longer":              {ipv4(7, 63, 1, 2, 3, 4, 0), padded, false},
		"encapsulated":        {vxlan, inner, true},
		"decapsulated":        {inner, vxlan, true},
		"cut":                 {vxlan[:60], vxlan, true},
		"six":                 {ipv6(64, 1, 2), ipv6(63, 1, 2), true},
		"another six":         {ipv6(64, 1, 2), ipv6(64, 1, 3), false},
		"arp":                 {arp, slices.Concat(arp, make([]byte, 18)), true},
		"another arp":         {arp, other, false},
		"nothing":             {nil, inner, false},
		"nothing at all":      {nil, nil, false},
	} {
		if got := samePacket(c.a, c.b); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestFilter(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	frame := func(src, dst netip.Addr) packet.Frame {
		return packet.Frame{Layers: []packet.Layer{{Kind: "eth"}, {Kind: "ip", Src: src, Dst: dst}}}
	}
	for name, test := range map[string]struct {
		filter Filter
		frame  packet.Frame
		want   bool
	}{
		"none":           {nil, packet.Frame{}, true},
		"from":           {Filter{{a}}, frame(a, b), true},
		"to":             {Filter{{a}}, frame(b, a), true},
		"of others":      {Filter{{a}}, frame(b, c), false},
		"no IP":          {Filter{{a}}, packet.Frame{Layers: []packet.Layer{{Kind: "eth"}}}, false},
		"between":        {Filter{{a}, {b}}, frame(a, b), true},
		"back":           {Filter{{a}, {b}}, frame(b, a), true},
		"to another":     {Filter{{a}, {b}}, frame(a, c), false},
		"from another":   {Filter{{a}, {b}}, frame(c, b), false},
		"one of several": {Filter{{c, a}, {b}}, frame(b, c), true},
	} {
		if got := test.filter.match(test.frame); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
