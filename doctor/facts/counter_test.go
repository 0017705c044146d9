package facts

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/packet"
)

// TestWraps: what counts as sent to a peer, or as come from it, is what the backend puts on the underlay.
func TestWraps(t *testing.T) {
	packet4 := func(protocol, port byte) []byte {
		return append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}, 1, 1, 0x20, port, 0, 8, 0, 0)
	}
	packet6 := append([]byte{0x60, 0, 0, 0, 0, 0, 41, 64}, make([]byte, 40)...)
	for name, c := range map[string]struct {
		w      counter
		packet []byte
		want   bool
	}{
		"UDP to the port":         {counter{proto: "udp", port: 8285}, packet4(17, 0x5d), true},
		"UDP to another port":     {counter{proto: "udp", port: 8285}, packet4(17, 0x5e), false},
		"an echo beside it":       {counter{proto: "udp", port: 8285}, packet4(1, 0), false},
		"IPIP":                    {counter{proto: "ipip"}, packet4(4, 0), true},
		"UDP beside IPIP":         {counter{proto: "ipip"}, packet4(17, 0), false},
		"IPv6 in IPv6":            {counter{proto: "ipv6"}, packet6, true},
		"an echo, not wrapped":    {counter{}, packet4(1, 0), true},
		"UDP, nothing is wrapped": {counter{}, packet4(17, 0x5d), false},
		"cut short":               {counter{}, packet4(1, 0)[:10], false},
	} {
		f := packet.DecodeStart(c.packet)
		ip, _ := f.First("ip")
		if ok := c.w.wraps(f); ok != c.want || ok && ip.Src.Is4() && (ip.From != "192.0.2.1" || ip.To != "192.0.2.2") {
			t.Errorf("%s: %s, %t", name, f, ok)
		}
	}
}

// TestCounts: only the probe's own packets count, and not what pods and agents exchange on the same way.
func TestCounts(t *testing.T) {
	own, peer, other := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.2.1"), netip.MustParseAddr("10.244.2.5")
	frame := func(proto string, inner ...packet.Layer) packet.Frame {
		f := packet.Frame{Layers: []packet.Layer{{Kind: "ip", Proto: 17}, {Kind: "udp", To: "8472"}}}
		if proto == "" {
			f.Layers = nil
		}
		f.Layers = append(f.Layers, inner...)
		return f
	}
	ip := func(src, dst netip.Addr) packet.Layer { return packet.Layer{Kind: "ip", Src: src, Dst: dst, Proto: 1} }
	request, reply := packet.Layer{Kind: "icmp", Info: "echo request"}, packet.Layer{Kind: "icmp", Info: "echo reply"}
	for _, proto := range []string{"udp", ""} {
		c := counter{proto: proto, port: 8472, peers: map[netip.Addr]int{peer: 0}}
		for name, test := range map[string]struct {
			frame packet.Frame
			want  bool
		}{
			"the request":         {frame(proto, ip(own, peer), request), true},
			"its reply":           {frame(proto, ip(peer, own), reply), true},
			"the peer asks, too":  {frame(proto, ip(peer, own), request), false},
			"the answer to that":  {frame(proto, ip(own, peer), reply), false},
			"a pod's request":     {frame(proto, ip(own, other), request), false},
			"a pod's reply":       {frame(proto, ip(other, own), reply), false},
			"a pod's TCP":         {frame("udp", ip(peer, own), packet.Layer{Kind: "tcp"}), false},
			"what cannot be read": {frame("udp"), proto == "udp"},
		} {
			if got := c.counts(test.frame); got != test.want {
				t.Errorf("%q: %s: got %t", proto, name, got)
			}
		}
	}
}
