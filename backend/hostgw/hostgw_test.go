package hostgw

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func lease(node, prefix, underlay string) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "host-gw", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix(prefix), Underlay: netip.MustParseAddr(underlay)}}}
}

func both(a, b subnet.Lease) subnet.Lease {
	a.Stacks = append(a.Stacks, b.Stacks...)
	return a
}

func TestDesired(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}
	b, warnings, err := New(networks, []byte(`{"Type":"host-gw","VNI":3}`))
	if err != nil || len(warnings) != 1 {
		t.Fatalf("warnings %v, %v, want one about VNI", warnings, err)
	}
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{
		{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		{Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1"), MTU: 1400, OnLink: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}}}}
	snap := subnet.Snapshot{Local: both(lease("n1", "10.244.1.0/24", "192.0.2.1"), lease("", "fc00:0:0:1::/64", "2001:db8::1")), Peers: []subnet.Lease{
		both(lease("n2", "10.244.2.0/24", "192.0.2.2"), lease("", "fc00:0:0:2::/64", "2001:db8::2")),
		both(lease("n3", "10.244.3.0/24", "203.0.113.3"), lease("", "fc00:0:0:3::/64", "2001:db8::3")),
	}}
	state, skips := b.Desired(node, snap)
	const golden = `route 10.244.2.0/24 via 192.0.2.2 dev eth0
route fc00:0:0:2::/64 via 2001:db8::2 dev eth1
route fc00:0:0:3::/64 via 2001:db8::3 dev eth1
`
	if got := state.String(); got != golden {
		t.Errorf("got\n%swant\n%s", got, golden)
	}
	spread, _, err := New(networks, []byte(`{"SpreadMetrics":true}`))
	if err != nil {
		t.Fatal(err)
	}
	const metrics = `route 10.244.2.0/24 via 192.0.2.2 dev eth0 metric 1202
route fc00:0:0:2::/64 via 2001:db8::2 dev eth1
route fc00:0:0:3::/64 via 2001:db8::3 dev eth1
`
	if state, _ := spread.Desired(node, snap); state.String() != metrics {
		t.Errorf("SpreadMetrics: got\n%swant\n%s", state, metrics)
	}
	beside := node
	beside.Underlays = slices.Clone(node.Underlays)
	beside.Underlays[0].Beside = []backend.Link{{Dev: "eth2", MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	if state, skips := b.Desired(beside, snap); len(skips) > 0 || state.String() != "route 10.244.2.0/24 via 192.0.2.2 dev eth0\n"+
		"route 10.244.3.0/24 via 203.0.113.3 dev eth2\n"+golden[strings.Index(golden, "route fc00"):] {
		t.Errorf("with n3 on the link of another device: %v, got\n%s", skips, state)
	}
	want := subnet.Skip{Node: "n3", Code: subnet.OffLink, Detail: "its underlay address 203.0.113.3 is not on the same L2 segment as eth0 ([192.0.2.0/24]), " +
		"which host-gw needs: use the vxlan backend"}
	if len(skips) != 1 || skips[0] != want {
		t.Errorf("skips %v, want %v", skips, want)
	}
	if mtu := b.MTU(node); mtu != 1400 {
		t.Errorf("MTU %d, want the smallest underlay's 1400", mtu)
	}
	if data, err := b.Publish(node, subnet.Lease{}, netstate.IPv4); data != nil || err != nil {
		t.Errorf("publishes %s, %v, want nothing", data, err)
	}
	if !b.(backend.Direct).Direct() {
		t.Error("its routes are not direct")
	}
	node.Underlays = node.Underlays[:1]
	if state, _ := b.Desired(node, snap); len(state) != 1 {
		t.Errorf("without an IPv6 underlay:\n%s", state)
	}
}

func TestAccelerable(t *testing.T) {
	for text, want := range map[string]backend.FastPath{
		``:                                {},
		`{"FastPath":true}`:               {On: true},
		`{"fastpath":true,"SkipMark":64}`: {On: true, SkipMark: 64},
	} {
		b, warnings, err := New(nil, []byte(text))
		if err != nil || len(warnings) > 0 || b.(backend.Accelerable).Accelerable() != want {
			t.Errorf("%s: %+v, %v, %v", text, b, warnings, err)
		}
	}
}
