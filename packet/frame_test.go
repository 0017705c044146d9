package packet

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

// vxlanPing is an echo request in VXLAN, as a lab's underlay carries it.
const vxlanPing = "ae203d6abddfaa3198b8273e0800" + // Ethernet
	"4500005600000000401100" + "00c0a82166c0a82165" + // IPv4, UDP, 86 bytes
	"89d9211800420000" + // UDP 35289 → 8472
	"0800000000000100" + // VXLAN, VNI 1
	"9e519f4e265ba22999fea6540800" +
	"450000240000400040010000" + "0af4e6020af48602" + // IPv4, ICMP, 36 bytes
	"0800000012340001" + "0000000000000000"

func decoded(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecodeVXLAN(t *testing.T) {
	f := Decode(decoded(t, vxlanPing))
	want := "eth aa:31:98:b8:27:3e → ae:20:3d:6a:bd:df | ip 192.168.33.102 → 192.168.33.101 ttl 64 | udp 35289 → 8472 | vxlan vni 1 | " +
		"eth a2:29:99:fe:a6:54 → 9e:51:9f:4e:26:5b | ip 10.244.230.2 → 10.244.134.2 ttl 64 | icmp echo request"
	if f.String() != want {
		t.Errorf("got  %s\nwant %s", f, want)
	}
	if !f.IsRequest(netip.MustParseAddr("10.244.134.2")) || f.IsRequest(netip.MustParseAddr("192.168.33.101")) || !f.Wrapped() {
		t.Errorf("request %v, wrapped %v", f.IsRequest(netip.MustParseAddr("10.244.134.2")), f.Wrapped())
	}
}

// TestUnheard: of a packet between nodes it is known what should listen, and of a pod's own it is not.
func TestUnheard(t *testing.T) {
	udp := func(port string) Layer { return Layer{Kind: "udp", From: "40000", To: port} }
	for want, layers := range map[string][]Layer{
		"no VXLAN listens on port 4789":      {{Kind: "ip"}, udp("4789"), {Kind: "vxlan"}, {Kind: "eth"}, {Kind: "ip"}, udp("53")},
		"no agent listens on port 8285":      {{Kind: "ip"}, udp("8285"), {Kind: "ip"}, {Kind: "icmp"}},
		"no WireGuard listens on port 51820": {{Kind: "ip"}, udp("51820"), {Kind: "wireguard"}},
		"":                                   {{Kind: "ip"}, udp("53")},
	} {
		if got := (Frame{Layers: layers}).Unheard(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDecodeIPv6(t *testing.T) {
	f := Decode(decoded(t, "0000000000020000000000018"+"6dd"+"6000000000083a40"+
		"fd000244000000010000000000000002"+"fd000244000000020000000000000002"+"8000000012340001"))
	want := "eth 00:00:00:00:00:01 → 00:00:00:00:00:02 | ip fd00:244:0:1::2 → fd00:244:0:2::2 hop limit 64 | icmp echo request"
	if f.String() != want {
		t.Errorf("got  %s\nwant %s", f, want)
	}
}

// TestDecodeStart: SCTP has ports, and of a packet's fragments only the first one has any, whatever the others hold.
func TestDecodeStart(t *testing.T) {
	const head, tail = "45000030" + "0001", "4084" + "0000" + "0af4e602" + "0af48602" + "1f901389" + "0000000000000000"
	for offset, want := range map[string]string{
		"2000": "ip 10.244.230.2 → 10.244.134.2 ttl 64 | sctp 8080 → 5001", "0001": "ip 10.244.230.2 → 10.244.134.2 ttl 64",
	} {
		if got := DecodeStart(decoded(t, head+offset+tail)).String(); got != want {
			t.Errorf("offset %s: got %s, want %s", offset, got, want)
		}
	}
}

func TestDecodeShort(t *testing.T) {
	whole := decoded(t, vxlanPing)
	for n := range whole {
		if f := Decode(whole[:n]); f.IsRequest(netip.MustParseAddr("10.244.134.2")) {
			t.Errorf("%d of %d bytes are taken for the whole packet: %s", n, len(whole), f)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data, err := hex.DecodeString(vxlanPing)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		frame := Decode(data)
		if frame.Length != len(data) {
			t.Errorf("%x: %+v", data, frame)
		}
	})
}
