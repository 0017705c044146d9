package locate

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/packet"
)

// TestSee tells packets of a flow from others, and from those that find its way.
func TestSee(t *testing.T) {
	f := Flow{Src: a, Dst: b, Proto: "icmp", Outer: [2]netip.Addr{netip.MustParseAddr("192.168.33.101"), netip.MustParseAddr("192.168.33.102")}}
	ip := func(src, dst netip.Addr, proto byte, more ...packet.Layer) packet.Frame {
		layers := []packet.Layer{{Kind: "eth", From: "02:00:00:00:00:01", To: "02:00:00:00:00:02"}, {Kind: "ip", Src: src, Dst: dst, Proto: proto, Size: 60}}
		return packet.Frame{Layers: append(layers, more...)}
	}
	for name, test := range map[string]struct {
		frame packet.Frame
		ok    bool
		back  bool
	}{
		"request": {ip(a, b, 1), true, false}, "reply": {ip(b, a, 1), true, true}, "other protocol": {ip(a, b, 6), false, false}, "others": {ip(a, a, 1), false, false},
		"tunnel":         {ip(f.Outer[0], f.Outer[1], 17, packet.Layer{Kind: "wireguard"}), true, false},
		"ARP":            {packet.Frame{Layers: []packet.Layer{{Kind: "arp", Src: a, Dst: b, Info: "request"}}}, true, false},
		"not encrypted":  {ip(f.Outer[0], f.Outer[1], 17), false, false},
		"ESP, backwards": {ip(f.Outer[1], f.Outer[0], 50), true, true},
	} {
		got, ok := f.See(packet.Sighting{Frame: test.frame})
		if ok != test.ok || got.Back != test.back {
			t.Errorf("%s: got %+v, %t", name, got, ok)
		}
	}
}
