package capture

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/packet"
)

// TestHarmless: an echo reply that no ping socket waits for is no loss, but for one that is still on its way between nodes.
func TestHarmless(t *testing.T) {
	node, pod := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.244.1.2")
	reply := []packet.Layer{{Kind: "ip", Src: pod}, {Kind: "icmp", Info: "echo reply"}}
	wrapped := append([]packet.Layer{{Kind: "ip", Src: node}, {Kind: "udp"}, {Kind: "vxlan"}}, reply...)
	d := drops.Drop{Reason: "NO_SOCKET"}
	if !harmless(d, packet.Frame{Layers: reply}) || harmless(d, packet.Frame{Layers: wrapped}) {
		t.Errorf("harmless: a reply %t, want true; one in VXLAN %t, want false", harmless(d, packet.Frame{Layers: reply}), harmless(d, packet.Frame{Layers: wrapped}))
	}
}
