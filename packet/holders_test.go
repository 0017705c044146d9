package packet

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestHolder: who answers for an address has it, and nothing else says so, whatever others send.
func TestHolder(t *testing.T) {
	addr, mac := netip.MustParseAddr("192.0.2.1"), net.HardwareAddr{2, 0, 0, 0, 0, 9}
	probe := ARP{Operation: ARPRequest, SenderMAC: mac, Sender: netip.IPv4Unspecified(), Target: addr}.frame()
	answer := slices.Clone(probe)
	copy(answer[arpSenderAt+6:], addr.AsSlice())
	foreign := slices.Clone(answer)
	foreign[arpSenderAt+9] = 2
	other := slices.Clone(answer)
	other[12] = 0x86
	for name, c := range map[string]struct {
		frame []byte
		want  net.HardwareAddr
	}{
		"an answer": {answer, mac}, "the question": {probe, nil}, "another address": {foreign, nil}, "another protocol": {other, nil},
		"half an answer": {answer[:30], nil}, "nothing": {nil, nil}, "with padding": {append(slices.Clone(answer), make([]byte, 18)...), mac},
	} {
		if got := holder(c.frame, addr); got.String() != c.want.String() {
			t.Errorf("%s: %s, want %q", name, got, c.want)
		}
	}
	if len(probe) != arpAt+arpLength || netip.AddrFrom4([4]byte(probe[arpSenderAt+6:])) != netip.IPv4Unspecified() {
		t.Errorf("the question has %d bytes, and says that it comes from %v", len(probe), probe[arpSenderAt+6:arpSenderAt+10])
	}
}
