package registry

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// needs are the options without which a backend refuses to work.
var needs = map[string]string{"ipsec": `,"PSK":"` + strings.Repeat("0123456789abcdef", 6) + `"`}

func TestNew(t *testing.T) {
	for kind := range backends(nil) {
		b, warnings, err := New(kind, nil, json.RawMessage(`{"Type":"`+kind+`","Typo":1`+needs[kind]+`}`))
		if b == nil || err != nil || len(warnings) != 1 {
			t.Errorf("%s: %v, %v, %v", kind, b, warnings, err)
		}
	}
	if _, _, err := New("VXLAN", nil, nil); err != nil {
		t.Errorf("upper case: %v", err)
	}
	for _, kind := range []string{"", "geneve"} {
		_, _, err := New(kind, nil, nil)
		if want := `net-conf Backend: unknown Type "` + kind + `", want one of ali-vpc, alloc, aws-vpc, extension, gce, host-gw, ipip, ipsec, udp, vxlan, wireguard`; err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", kind, err, want)
		}
	}
}

// TestExposed: pods are kept from the packets that nodes take by their form.
func TestExposed(t *testing.T) {
	want := map[string]string{"vxlan": "udp dport 4789, udp dport 4789", "udp": "udp dport 4789, udp dport 4789", "ipip": "proto 4, proto 41"}
	for kind := range backends(nil) {
		b, _, err := New(kind, nil, json.RawMessage(`{"Type":"`+kind+`","Port":4789`+needs[kind]+`}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e, ok := b.(backend.Exposed); ok {
			got = e.Wrapped(netstate.IPv4).String() + ", " + e.Wrapped(netstate.IPv6).String()
		}
		if got != want[kind] {
			t.Errorf("%s: %q, want %q", kind, got, want[kind])
		}
	}
}

// TestOutsiders: routes that others write are swept with all other backends.
func TestOutsiders(t *testing.T) {
	for kind := range backends(nil) {
		b, _, err := New(kind, nil, json.RawMessage(`{"Type":"`+kind+`"`+needs[kind]+`}`))
		if _, outsider := b.(backend.ExternalRoutes); err != nil || outsider != (kind == "alloc" || kind == "extension") {
			t.Errorf("%s: outsider %t, %v", kind, outsider, err)
		}
	}
}
