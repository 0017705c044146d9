package walk

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/twill-net/twill/packet"
)

// vxlanPing is an echo request in VXLAN, as a lab's underlay carries it.
const vxlanPing = "ae203d6abddfaa3198b8273e0800" + // Ethernet
	"4500005600000000401100" + "00c0a82166c0a82165" + // IPv4, UDP, 86 bytes
	"89d9211800420000" + // UDP 35289 → 8472
	"0800000000000100" + // VXLAN, VNI 1
	"9e519f4e265ba22999fea6540800" +
	"450000240000400040010000" + "0af4e6020af48602" + // IPv4, ICMP, 36 bytes
	"0800000012340001" + "0000000000000000"

func TestSVGIsOnePicture(t *testing.T) {
	data, err := hex.DecodeString(vxlanPing)
	if err != nil {
		t.Fatal(err)
	}
	p := Path{From: "a<b", To: "c", Steps: []Step{{packet.Sighting{Point: packet.Point{Host: "h", Dev: "eth0", Out: true}, Frame: packet.Decode(data)}, []Entry{{"route", "x & y"}}}}}
	var b strings.Builder
	if err := p.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a&lt;b", "x &amp; y", "vxlan vni 1", "</svg>"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, &b)
		}
	}
}
