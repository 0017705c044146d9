package gce

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
)

// FuzzRoute: whatever a server lists is a route with a masked prefix and a target of one line, or an error of one line.
func FuzzRoute(f *testing.F) {
	for _, text := range []string{
		`{"name":"a","destRange":"10.244.1.0/24","network":"x/prod","nextHopInstance":"https://x/compute/v1/projects/p/zones/z/instances/i"}`,
		`{"destRange":"fd00::1/64","nextHopIp":"10.0.0.1","tags":["a","b"],"warnings":[{"code":"NEXT_HOP_ADDRESS_NOT_ASSIGNED"}]}`,
		`{"destRange":"0.0.0.0/0","nextHopGateway":"\u001b[2J\n/projects/"}`, `{"destRange":"::ffff:1.2.3.4/8","routeStatus":"PENDING"}`, `{"priority":-1}`, `[]`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var w route
		if json.Unmarshal(text, &w) != nil {
			return
		}
		r, err := w.route(cloud.Self{Target: "projects/p/zones/z/instances/i"})
		said := r.Target
		if err != nil {
			said = err.Error()
		} else if r.Dst != r.Dst.Masked() || r.Target == "" {
			t.Errorf("%+v of %s", r, text)
		}
		if strings.ContainsAny(said, "\n\r\x1b") {
			t.Errorf("more than one line: %q", said)
		}
		_, _ = parseNetwork(w.Network)
	})
}

// FuzzName: each prefix has a name that the API takes, and another one in another network.
func FuzzName(f *testing.F) {
	f.Add([]byte{10, 244, 1, 0}, 24)
	f.Add(netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:7777").AsSlice(), 128)
	f.Fuzz(func(t *testing.T, address []byte, bits int) {
		addr, ok := netip.AddrFromSlice(address)
		p := netip.PrefixFrom(addr.Unmap(), bits)
		if !ok || !p.IsValid() {
			return
		}
		one, two := routeName(network{"p", "a"}, p, nil), routeName(network{"p", "b"}, p, nil)
		if !isName(one) || one == two {
			t.Errorf("%s: %q and %q", p, one, two)
		}
	})
}
