package facts

import "testing"

// TestEnds: what counts as sent to a peer, or as come from it, is what the backend puts on the underlay.
func TestEnds(t *testing.T) {
	packet4 := func(protocol, port byte) []byte {
		return append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}, 1, 1, 0x20, port, 0, 8, 0, 0)
	}
	packet6 := append([]byte{0x60, 0, 0, 0, 0, 0, 41, 64}, make([]byte, 40)...)
	for name, c := range map[string]struct {
		w      watcher
		packet []byte
		want   bool
	}{
		"UDP to the port":         {watcher{proto: "udp", port: 8285}, packet4(17, 0x5d), true},
		"UDP to another port":     {watcher{proto: "udp", port: 8285}, packet4(17, 0x5e), false},
		"an echo beside it":       {watcher{proto: "udp", port: 8285}, packet4(1, 0), false},
		"IPIP":                    {watcher{proto: "ipip"}, packet4(4, 0), true},
		"UDP beside IPIP":         {watcher{proto: "ipip"}, packet4(17, 0), false},
		"IPv6 in IPv6":            {watcher{proto: "ipv6"}, packet6, true},
		"an echo, not wrapped":    {watcher{}, packet4(1, 0), true},
		"UDP, nothing is wrapped": {watcher{}, packet4(17, 0x5d), false},
		"cut short":               {watcher{}, packet4(1, 0)[:10], false},
	} {
		src, dst, ok := c.w.ends(c.packet)
		if ok != c.want || ok && src.Is4() && (src.String() != "192.0.2.1" || dst.String() != "192.0.2.2") {
			t.Errorf("%s: %s to %s, %t", name, src, dst, ok)
		}
	}
}
