package ipip

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func stack(prefix, underlay string) subnet.Stack {
	return subnet.Stack{Subnet: netip.MustParsePrefix(prefix), Underlay: netip.MustParseAddr(underlay)}
}

func lease(node string, stacks ...subnet.Stack) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "ipip", Stacks: stacks}
}

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}
	eth0     = backend.Underlay{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	eth1     = backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}}
	cluster  = subnet.Snapshot{Local: lease("n1", stack("10.244.1.0/24", "192.0.2.1"), stack("fc00:0:0:1::/64", "2001:db8::1")), Peers: []subnet.Lease{
		lease("n2", stack("10.244.2.0/24", "192.0.2.2"), stack("fc00:0:0:2::/64", "2001:db8::2")),
		lease("n3", stack("10.244.3.0/24", "203.0.113.3"), stack("fc00:0:0:3::/64", "2001:db8:3::3")),
		lease("n4", stack("10.244.3.0/24", "203.0.113.4")),
	}}
)

const links = `link flannel-v6.ipip ip6tnl external mtu 1460 up
link flannel.ipip ipip local 192.0.2.1 mtu 1480 up
sysctl net/ipv4/conf/flannel.ipip/rp_filter = 2
sysctl net/ipv6/conf/flannel-v6.ipip/accept_ra = 0
addr fc00:0:0:1::/128 dev flannel-v6.ipip nodad
addr 10.244.1.0/32 dev flannel.ipip
`

func TestDesired(t *testing.T) {
	for options, golden := range map[string]string{
		`{"Type":"ipip"}`: links + `route 10.244.2.0/24 via 192.0.2.2 dev flannel.ipip onlink
route 10.244.3.0/24 via 203.0.113.3 dev flannel.ipip onlink
route fc00:0:0:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev flannel-v6.ipip
route fc00:0:0:3::/64 encap ip6 src 2001:db8::1 dst 2001:db8:3::3 dev flannel-v6.ipip
`,
		`{"Type":"ipip","SpreadMetrics":true}`: links + `route 10.244.2.0/24 via 192.0.2.2 dev flannel.ipip metric 1202 onlink
route 10.244.3.0/24 via 203.0.113.3 dev flannel.ipip metric 1203 onlink
route fc00:0:0:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev flannel-v6.ipip
route fc00:0:0:3::/64 encap ip6 src 2001:db8::1 dst 2001:db8:3::3 dev flannel-v6.ipip
`,
		`{"Type":"ipip","DirectRouting":true}`: links + `route 10.244.2.0/24 via 192.0.2.2 dev eth0
route 10.244.3.0/24 via 203.0.113.3 dev flannel.ipip onlink
route fc00:0:0:2::/64 via 2001:db8::2 dev eth1
route fc00:0:0:3::/64 encap ip6 src 2001:db8::1 dst 2001:db8:3::3 dev flannel-v6.ipip
`,
	} {
		b, warnings, err := New(networks, []byte(options))
		if err != nil || len(warnings) > 0 {
			t.Fatal(warnings, err)
		}
		state, skips := b.Desired(backend.Node{Name: "n1", Underlays: []backend.Underlay{eth0, eth1}}, cluster)
		if got := state.String(); got != golden {
			t.Errorf("%s: got\n%swant\n%s", options, got, golden)
		}
		if len(skips) != 1 || skips[0].Node != "n4" {
			t.Errorf("skips %v, want n4 that claims n3's subnet", skips)
		}
		for _, f := range netstate.Families {
			if data, err := b.Publish(backend.Node{}, subnet.Lease{}, f); data != nil || err != nil {
				t.Errorf("publishes %s, %v", data, err)
			}
		}
	}
}

// TestWrapped: pods are kept from the packets that nodes take, and what flannel left is known.
func TestWrapped(t *testing.T) {
	for options, direct := range map[string]bool{`{}`: false, `{"DirectRouting":true}`: true} {
		b, _, err := New(networks, []byte(options))
		if err != nil {
			t.Fatal(err)
		}
		four, six := b.(backend.Exposed).Wrapped(netstate.IPv4).String(), b.(backend.Exposed).Wrapped(netstate.IPv6).String()
		if four != "proto 4" || six != "proto 41" || b.(backend.Direct).Direct() != direct {
			t.Errorf("%s: packets are wrapped in %s and %s, want proto 4 and proto 41; direct: %t", options, four, six, !direct)
		}
	}
}

func TestMTU(t *testing.T) {
	b, _, err := New(networks, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, underlays := range map[int][]backend.Underlay{0: nil, 1480: {eth0}, 1460: {eth0, eth1}} {
		if mtu := b.MTU(backend.Node{Underlays: underlays}); mtu != want {
			t.Errorf("MTU %d over %v, want %d", mtu, underlays, want)
		}
	}
	if state, _ := b.Desired(backend.Node{}, cluster); len(state) != 0 {
		t.Errorf("without an underlay:\n%s", state)
	}
}
