package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// packet4 is an IPv4 packet of a protocol, from 10.244.1.2 to 10.244.9.9.
func packet4(proto byte, payload ...byte) []byte {
	p := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0, 0, 64, proto, 0, 0, 10, 244, 1, 2, 10, 244, 9, 9}
	return append(p, payload...)
}

func packet6(proto byte, payload ...byte) []byte {
	p := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), proto, 64}
	p = append(p, netip.MustParseAddr("fc00:0:0:1::2").AsSlice()...)
	p = append(p, netip.MustParseAddr("fc00:0:0:9::9").AsSlice()...)
	return append(p, payload...)
}

var udpHeader = []byte{0, 1, 0, 2, 0, 8, 0, 0}

func TestUnreachable(t *testing.T) {
	p := packet4(17, udpHeader...)
	m := unreachable(nil, p)
	src, dst, ok := addresses(m)
	if !ok || src.String() != "10.244.9.9" || dst.String() != "10.244.1.2" || m[9] != icmp4 || m[20] != unreachType4 || !slices.Equal(m[28:], p) {
		t.Errorf("IPv4: % x", m)
	}
	header, netError := []byte{0x45, 0, 0, byte(len(m)), 0, 0, 0, 0, hopLimit, icmp4}, []byte{unreachType4, 0, m[22], m[23], 0, 0, 0, 0}
	if !slices.Equal(m[:10], header) || !slices.Equal(m[20:28], netError) {
		t.Errorf("IPv4: the headers are % x and % x, want % x and % x", m[:10], m[20:28], header, netError)
	}
	if checksum(m[:20], 0) != 0 || checksum(m[20:], 0) != 0 {
		t.Errorf("IPv4: a checksum is wrong: % x", m)
	}
	p = packet6(17, append(slices.Clone(udpHeader), make([]byte, 1400)...)...)
	m = unreachable(nil, p)
	src, dst, ok = addresses(m)
	if !ok || src.String() != "fc00:0:0:9::9" || dst.String() != "fc00:0:0:1::2" || m[6] != icmp6 || m[40] != unreachType6 || len(m) != least6 || !slices.Equal(m[48:], p[:least6-48]) {
		t.Errorf("IPv6: %d bytes, % x", len(m), m[:60])
	}
	if checksum(m[8:], uint32(len(m)-40)+icmp6) != 0 {
		t.Errorf("IPv6: the checksum is wrong")
	}
	header, netError = []byte{0x60, 0, 0, 0, byte((least6 - 40) >> 8), byte((least6 - 40) & 255), icmp6, hopLimit}, []byte{unreachType6, 0, m[42], m[43], 0, 0, 0, 0}
	if !slices.Equal(m[:8], header) || !slices.Equal(m[40:48], netError) {
		t.Errorf("IPv6: the headers are % x and % x, want % x and % x", m[:8], m[40:48], header, netError)
	}
	if m = unreachable(nil, packet6(17, 1, 2, 3)); len(m) != 48+43 || checksum(m[8:], uint32(len(m)-40)+icmp6) != 0 {
		t.Errorf("IPv6, an odd number of bytes: %d bytes, % x", len(m), m)
	}
	options := append(append([]byte{0x46, 0, 0, 34}, p4()[4:20]...), 1, 1, 1, 1, 0, 1, 0, 2, 0, 10, 0, 0, 9, 9)
	if m = unreachable(nil, options); len(m) != 28+32 || m[3] != byte(len(m)) || !slices.Equal(m[28:], options[:32]) || checksum(m[20:], 0) != 0 {
		t.Errorf("IPv4 with options: % x", m)
	}
}

func p4() []byte { return packet4(17) }

// TestAddresses: a packet is at least its header and what that says.
func TestAddresses(t *testing.T) {
	four, six := p4(), packet6(59)
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"IPv4": {four, true}, "IPv6": {six, true}, "IPv4 with more behind it": {append(p4(), 0), true}, "IPv6 with more behind it": {append(packet6(59), 0), true},
		"IPv4 without the last byte": {four[:19], false}, "IPv6 without the last byte": {six[:39], false},
		"IPv4 that says more": {append([]byte{0x45, 0, 0, 21}, four[4:]...), false}, "IPv6 that says more": {append([]byte{0x60, 0, 0, 0, 0, 1}, six[6:]...), false},
		"IPv4 with half a header": {append([]byte{0x44}, four[1:]...), false}, "version 5": {append([]byte{0x55}, six[1:]...), false},
	} {
		if _, _, ok := addresses(c.packet); ok != c.want {
			t.Errorf("%s: %t, want %t", name, ok, c.want)
		}
	}
}

// TestUnreachableNot: errors about these would never end, or reach someone else.
func TestUnreachableNot(t *testing.T) {
	fragment, multicast, broken := packet4(17, udpHeader...), packet4(17, udpHeader...), packet4(17, udpHeader...)
	binary.BigEndian.PutUint16(fragment[6:], 100)
	multicast[16] = 224
	binary.BigEndian.PutUint16(broken[2:], 1000)
	for name, p := range map[string][]byte{
		"an ICMP error": packet4(1, 3, 1, 0, 0, 0, 0, 0, 0), "an ICMPv6 error": packet6(58, 1, 0, 0, 0), "ICMPv6 without a type": packet6(58),
		"from a group": from(packet4(17, udpHeader...), "224.0.0.1"), "from nobody": from(packet4(17, udpHeader...), "0.0.0.0"),
		"IPv6 from nobody": from(packet6(17, udpHeader...), "::"), "half a UDP header": packet4(17, udpHeader[:7]...),
		"a later fragment": fragment, "to a group": multicast, "cut short": broken, "empty": nil, "no IP": {0x15, 1, 2},
	} {
		if m := unreachable(nil, p); m != nil {
			t.Errorf("%s: % x", name, m)
		}
	}
	first := packet4(17, udpHeader...)
	binary.BigEndian.PutUint16(first[6:], 0x2000)
	for name, p := range map[string][]byte{"an echo request": packet4(1, 8, 0, 0, 0, 0, 0, 0, 0), "an echo reply": packet4(1, 0, 0, 0, 0, 0, 0, 0, 0),
		"an ICMPv6 echo request": packet6(58, 128, 0, 0, 0), "the first fragment": first, "IPv6 without a next header": packet6(59)} {
		if m := unreachable(nil, p); m == nil {
			t.Errorf("no error about %s", name)
		}
	}
}

// from is p from another address.
func from(p []byte, src string) []byte {
	a := netip.MustParseAddr(src)
	copy(p[map[bool]int{true: 12, false: 8}[a.Is4()]:], a.AsSlice())
	return p
}

func FuzzUnreachable(f *testing.F) {
	f.Add(packet4(17, udpHeader...))
	f.Add(packet6(58, 128, 0, 0, 0))
	f.Fuzz(func(t *testing.T, p []byte) {
		m := unreachable(nil, p)
		if m == nil {
			return
		}
		_, asked, _ := addresses(p)
		if src, _, ok := addresses(m); !ok || src != asked || len(m) > least6 {
			t.Errorf("about % x: % x", p, m)
		}
		if again := unreachable(nil, m); again != nil {
			t.Errorf("an error about an error: % x", again)
		}
	})
}
