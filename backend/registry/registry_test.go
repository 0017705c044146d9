package registry

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
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

// TestAccelerable: encrypted packets, and those that others carry, take no shortcut, and who asks for one is told.
func TestAccelerable(t *testing.T) {
	for kind := range backends(nil) {
		b, warnings, err := New(kind, nil, json.RawMessage(`{"Type":"`+kind+`","FastPath":true`+needs[kind]+`}`))
		_, ok := b.(backend.Accelerable)
		if can := kind == "vxlan" || kind == "host-gw"; err != nil || ok != can || (len(warnings) == 0) != can {
			t.Errorf("%s: accelerable %t, %v, %v", kind, ok, warnings, err)
		}
	}
}

// TestMoreNetworks: peers in another network of pods are no strangers, and a second network of a family is no second
// family.
func TestMoreNetworks(t *testing.T) {
	pools := []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}}
	more := []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16"), netip.MustParsePrefix("fd00:245::/48")}
	if _, _, err := New("wireguard", pools, json.RawMessage(`{"ListenPort": 51820, "ListenPortV6": 51820}`), more...); err != nil {
		t.Error(err)
	}
	lease := func(name, pods, at string) subnet.Lease {
		return subnet.Lease{Node: name, Backend: "host-gw", Stacks: []subnet.Stack{
			{Subnet: netip.MustParsePrefix(pods), Underlay: netip.MustParseAddr(at)}}}
	}
	snap := subnet.Snapshot{Local: lease("n1", "10.244.1.0/24", "192.0.2.1"), Peers: []subnet.Lease{
		lease("n2", "10.245.2.0/24", "192.0.2.2"), lease("n3", "10.246.3.0/24", "192.0.2.3")}}
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"),
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	b, _, err := New("host-gw", pools, json.RawMessage(`{}`), more...)
	if err != nil {
		t.Fatal(err)
	}
	want, skips := b.Desired(node, snap)
	if !strings.Contains(want.String(), "10.245.2.0/24") || len(skips) != 1 || skips[0].Node != "n3" {
		t.Errorf("want\n%s\nwithout %v", want, skips)
	}
}

// TestDevices: of each backend it is known what devices it needs.
func TestDevices(t *testing.T) {
	config, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00::/48"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, options, want, with string }{
		{kind: "vxlan", want: "flannel-v6.1 flannel.1"}, {kind: "host-gw"}, {kind: "alloc"}, {kind: "udp", want: "flannel0"},
		{kind: "ipip", want: "flannel-v6.ipip flannel.ipip"}, {kind: "wireguard", want: "flannel-wg flannel-wg-v6", with: "tun"},
	} {
		b, _, err := New(c.kind, config.Pools, []byte(`{"Type": "`+c.kind+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range backend.Devices(b, config.Pools, false) {
			names = append(names, d.Key().Name)
			if !strings.Contains(d.String(), c.with) {
				t.Errorf("%s wants %s, and the kernel has no WireGuard", c.kind, d)
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s wants the devices %q, want %q", c.kind, got, c.want)
		}
	}
}

// TestKept: the backends of before are read as the network config's was, without a type and in upper case.
func TestKept(t *testing.T) {
	for kept, want := range map[string]string{`{"Type": "vxlan"}`: "vxlan", `{"Type": "VXLAN", "VNI": 7}`: "vxlan", `{"Port": 4789}`: "vxlan",
		`{"Type": "IPIP"}`: "ipip", `{"Type": "udp"}`: "udp", `{"Type": "ipsec"}`: "", `{"Type": 3}`: "", `3`: ""} {
		config, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`))
		if err != nil {
			t.Fatal(err)
		}
		config.Kept = []json.RawMessage{[]byte(kept)}
		b, _, err := NewKept(config)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if tr, ok := b.(backend.Transition); ok {
			got = tr.Types()[1]
		}
		if got != want {
			t.Errorf("%s is kept as %q, want %q", kept, got, want)
		}
	}
}
