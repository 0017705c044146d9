package ipip

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

func stack(prefix, underlay string) subnet.Stack {
	return subnet.Stack{Subnet: netip.MustParsePrefix(prefix), Underlay: netip.MustParseAddr(underlay)}
}

func lease(node string, stacks ...subnet.Stack) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "ipip", Stacks: stacks}
}

func TestDesired(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{
		{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	}}
	snap := subnet.Snapshot{Local: lease("n1", stack("10.244.1.0/24", "192.0.2.1")), Peers: []subnet.Lease{
		lease("n2", stack("10.244.2.0/24", "192.0.2.2")),
		lease("n3", stack("10.244.3.0/24", "203.0.113.3")),
		lease("n4", stack("10.244.3.0/24", "203.0.113.4")),
	}}
	const links = `link flannel.ipip ipip local 192.0.2.1 mtu 1480 up
sysctl net/ipv4/conf/flannel.ipip/rp_filter = 2
addr 10.244.1.0/32 dev flannel.ipip
`
	for options, golden := range map[string]string{
		`{"Type":"ipip"}`: links + `route 10.244.2.0/24 via 192.0.2.2 dev flannel.ipip onlink
route 10.244.3.0/24 via 203.0.113.3 dev flannel.ipip onlink
`,
		`{"Type":"ipip","DirectRouting":true}`: links + `route 10.244.2.0/24 via 192.0.2.2 dev eth0
route 10.244.3.0/24 via 203.0.113.3 dev flannel.ipip onlink
`,
	} {
		b, warnings, err := New(networks, []byte(options))
		if err != nil || len(warnings) > 0 {
			t.Fatal(warnings, err)
		}
		state, skips := b.Desired(node, snap)
		if got := state.String(); got != golden {
			t.Errorf("%s: got\n%swant\n%s", options, got, golden)
		}
		if len(skips) != 1 || skips[0].Node != "n4" {
			t.Errorf("skips %v, want n4 that claims n3's subnet", skips)
		}
		if mtu := b.MTU(node); mtu != 1480 {
			t.Errorf("MTU %d", mtu)
		}
		if data, err := b.Publish(node, true); data != nil || err != nil {
			t.Errorf("publishes %s, %v", data, err)
		}
	}
	b, _, err := New(networks, nil)
	if err != nil {
		t.Fatal(err)
	}
	if state, _ := b.Desired(backend.Node{}, snap); len(state) != 0 {
		t.Errorf("without an underlay:\n%s", state)
	}
	_, _, err = New(append(networks, netip.MustParsePrefix("fc00::/48")), nil)
	if want := "net-conf Backend: ipip carries IPv4 only, and IPv6Network is fc00::/48: use vxlan, wireguard, udp or host-gw"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
