package traffic

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/drops"
)

// echo is an echo request or reply from a pod of one node to a pod of another, from its IP header on.
func echo(t *testing.T, kind string, vxlan bool) []byte {
	t.Helper()
	text := "450000240000400040010000" + "0af40102" + "0af40202" + kind + "00000012340001" + "0000000000000000"
	if vxlan {
		text = "45000056000000004011" + "0000" + "c0000201" + "c0000202" + "89d9211800420000" + "0800000000000100" +
			"0a00000000020a00000000010800" + text
	}
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestUnheard: a packet between nodes for which nothing listens is lost, whatever is in it, and the text says what should have
// listened, where. A pod's reply that only one of its sockets does not want is not lost.
func TestUnheard(t *testing.T) {
	const request, reply = "08", "00"
	for _, test := range []struct {
		kind  string
		vxlan bool
		drops int
		says  string
	}{
		{request, true, 1, "no VXLAN listens on port 8472 at node2"},
		{reply, true, 1, "no VXLAN listens on port 8472 at node2"},
		{request, false, 1, "no program listens on this port"},
		{reply, false, 0, ""},
	} {
		w := &run{Watcher: Watcher{Src: netip.MustParseAddr("10.244.1.2"), Dst: netip.MustParseAddr("10.244.2.2")}}
		w.drop(drops.Drop{Reason: "NO_SOCKET", Function: "__udp4_lib_rcv", Host: "node2", Dev: "eth0", Packet: echo(t, test.kind, test.vxlan)})
		var b strings.Builder
		if err := (doctor.Trace{Traffic: &w.traffic}).WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if got := len(w.traffic.Drops); got != test.drops || !strings.Contains(b.String(), test.says) {
			t.Errorf("type %s, in VXLAN %t: %d drops, want %d and %q in\n%s", test.kind, test.vxlan, got, test.drops, test.says, b.String())
		}
	}
}
