package alloc

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func lease(node, kind, prefix, underlay string) subnet.Lease {
	return subnet.Lease{Node: node, Backend: kind, Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix(prefix), Underlay: netip.MustParseAddr(underlay)}}}
}

func TestBackend(t *testing.T) {
	b, warnings, err := New([]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, []byte(`{"Type":"alloc","VNI":3}`))
	if err != nil || len(warnings) != 1 {
		t.Fatalf("warnings %v, %v, want one about VNI", warnings, err)
	}
	node := backend.Node{Underlays: []backend.Underlay{{MTU: 1500}, {MTU: 1400}}}
	if mtu := b.MTU(node); mtu != 1400 {
		t.Errorf("MTU %d, want the smallest underlay's 1400", mtu)
	}
	if data, err := b.Publish(node, subnet.Lease{}, netstate.IPv4); data != nil || err != nil {
		t.Errorf("publishes %s, %v, want nothing", data, err)
	}
	state, skips := b.Desired(node, subnet.Snapshot{Local: lease("n1", "alloc", "10.244.1.0/24", "192.0.2.1"),
		Peers: []subnet.Lease{lease("n2", "alloc", "10.244.2.0/24", "192.0.2.2"), lease("n3", "alloc", "10.244.1.0/24", "192.0.2.3")}})
	if len(state) != 0 {
		t.Errorf("wants\n%s", state)
	}
	if len(skips) != 1 || skips[0].Node != "n3" {
		t.Errorf("skips %v, want n3 that claims this node's subnet", skips)
	}
}
