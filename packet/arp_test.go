package packet

import (
	"net"
	"net/netip"
	"testing"
)

// TestExplainARP: the 28 bytes of a packet, as RFC 826 has them, and nothing of another frame.
func TestExplainARP(t *testing.T) {
	reply := ARP{ARPReply, net.HardwareAddr{2, 0, 0, 0, 0, 0x22}, netip.MustParseAddr("192.0.2.2"), net.HardwareAddr{2, 0, 0, 0, 0, 0x11},
		netip.MustParseAddr("192.0.2.1")}
	const want = `hardware type   00 01              Ethernet
protocol type   08 00              IPv4
hardware size   06
protocol size   04
operation       00 02              reply
sender MAC      02 00 00 00 00 22
sender address  c0 00 02 02        192.0.2.2
target MAC      02 00 00 00 00 11
target address  c0 00 02 01        192.0.2.1
`
	frame := reply.frame()
	if got := ExplainARP(frame); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if to := net.HardwareAddr(frame[:6]); to.String() != reply.TargetMAC.String() {
		t.Errorf("the reply goes to %s, want %s", to, reply.TargetMAC)
	}
	reply.TargetMAC = nil
	if to := net.HardwareAddr(reply.frame()[:6]); to.String() != "ff:ff:ff:ff:ff:ff" {
		t.Errorf("what has no target's MAC goes to %s, want everybody", to)
	}
	frame[13] = 0
	for _, other := range [][]byte{frame, frame[:40], nil} {
		if got := ExplainARP(other); got != "" {
			t.Errorf("% x: %s", other, got)
		}
	}
}
