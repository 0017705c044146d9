package facts

import (
	"testing"

	"github.com/twill-net/twill/packet"
)

// TestCounts: what counts as sent to a peer, or as come from it, is what the backend puts on the underlay.
func TestCounts(t *testing.T) {
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
		if ok := c.w.counts(f); ok != c.want || ok && ip.Src.Is4() && (ip.From != "192.0.2.1" || ip.To != "192.0.2.2") {
			t.Errorf("%s: %s, %t", name, f, ok)
		}
	}
}
