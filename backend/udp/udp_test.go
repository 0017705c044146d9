package udp

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}

func stack(prefix, underlay string) subnet.Stack {
	return subnet.Stack{Subnet: netip.MustParsePrefix(prefix), Underlay: netip.MustParseAddr(underlay)}
}

func lease(node string, stacks ...subnet.Stack) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "udp", Stacks: stacks}
}

var snap = subnet.Snapshot{
	Local: lease("n1", stack("10.244.1.0/24", "192.0.2.1"), stack("fc00:0:0:1::/64", "2001:db8::1")),
	Peers: []subnet.Lease{
		lease("n2", stack("10.244.2.0/24", "192.0.2.2"), stack("fc00:0:0:2::/64", "2001:db8::2")),
		lease("n3", stack("10.244.48.0/20", "198.51.100.3")),
		lease("n4", stack("10.244.2.0/24", "192.0.2.4")),
	},
}

func newBackend(t *testing.T, options string) Backend {
	t.Helper()
	b, _, err := New(networks, []byte(options))
	if err != nil {
		t.Fatal(err)
	}
	return b.(Backend)
}

func TestDesired(t *testing.T) {
	b := newBackend(t, `{"Type":"udp"}`)
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{
		{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500}, {Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1"), MTU: 1500}}}
	state, skips := b.Desired(node, snap)
	const golden = `link flannel0 tun mtu 1452 up
sysctl net/ipv4/conf/flannel0/rp_filter = 2
sysctl net/ipv6/conf/flannel0/accept_ra = 0
addr 10.244.1.0/32 dev flannel0
addr fc00:0:0:1::/128 dev flannel0 nodad
route 10.244.2.0/24 dev flannel0
route 10.244.48.0/20 dev flannel0
route fc00:0:0:2::/64 dev flannel0
`
	if got := state.String(); got != golden {
		t.Errorf("got\n%swant\n%s", got, golden)
	}
	if len(skips) != 1 || skips[0].Node != "n4" {
		t.Errorf("skips %v, want n4 that claims n2's subnet", skips)
	}
	if data, err := b.Publish(node, subnet.Lease{}, netstate.IPv4); data != nil || err != nil {
		t.Errorf("publishes %s, %v, want nothing", data, err)
	}
	node.Underlays = node.Underlays[:1]
	state, _ = b.Desired(node, snap)
	if mtu := b.MTU(node); mtu != 1472 || len(state) != 5 {
		t.Errorf("without an IPv6 underlay: MTU %d\n%s", mtu, state)
	}
}

func TestOptions(t *testing.T) {
	if b := newBackend(t, `{}`); b.options.Port != 8285 {
		t.Errorf("port %d", b.options.Port)
	}
	if b := newBackend(t, `{"port":9}`); b.options.Port != 9 {
		t.Errorf("port %d", b.options.Port)
	}
	for _, options := range []string{`{"Port":1}`, `{"Port":65535}`} {
		newBackend(t, options)
	}
	if b := newBackend(t, `{"Port":9}`); b.Wrapped(netstate.IPv4).String() != "udp dport 9" || b.Wrapped(netstate.IPv6) != b.Wrapped(netstate.IPv4) {
		t.Errorf("packets are wrapped in %s and %s, want udp dport 9", b.Wrapped(netstate.IPv4), b.Wrapped(netstate.IPv6))
	}
	for _, options := range []string{`{"Port":0}`, `{"Port":65536}`, `{"Port":"x"}`} {
		if _, _, err := New(networks, []byte(options)); err == nil {
			t.Errorf("%s: no error", options)
		}
	}
}

func TestTable(t *testing.T) {
	b := newBackend(t, `{"Port":9}`)
	table := b.newTable(backend.Input{Snapshot: snap})
	for dst, want := range map[string]string{"10.244.2.0": "192.0.2.2:9", "10.244.2.255": "192.0.2.2:9", "10.244.3.0": "", "10.244.1.5": "",
		"10.244.63.9": "198.51.100.3:9", "10.244.64.0": "", "fc00:0:0:2::9": "[2001:db8::2]:9", "fc00:0:0:3::9": "", "::": ""} {
		got := ""
		if e := table.find(netip.MustParseAddr(dst)); e != nil {
			got = e.String()
		}
		if got != want {
			t.Errorf("%s goes to %q, want %q", dst, got, want)
		}
	}
	if e := (&table0).find(netip.MustParseAddr("10.244.2.1")); e != nil {
		t.Errorf("an empty table sends to %v", e)
	}
}

var table0 table
