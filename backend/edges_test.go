package backend_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestSkipCodes: programs are told the reasons by their codes. This node's links are of both families.
func TestSkipCodes(t *testing.T) {
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"),
		OnLink: prefixes("2001::/16", "192.0.2.0/26")}}}
	for name, test := range map[string]struct {
		ours string
		peer subnet.Lease
		want subnet.Code
	}{
		"another backend":              {"vxlan", lease("a", "host-gw", "10.244.2.0/24", "192.0.2.2"), subnet.OtherBackend},
		"a name beside udp":            {"udp", lease("a", "vxlan", "10.244.2.0/24", "192.0.2.2"), subnet.OtherBackend},
		"outside":                      {"vxlan", lease("a", "vxlan", "10.99.2.0/24", "192.0.2.2"), subnet.OutsideNetwork},
		"wider, and begins as ours":    {"vxlan", lease("a", "vxlan", "10.244.0.0/15", "192.0.2.2"), subnet.OutsideNetwork},
		"nobody's address":             {"vxlan", lease("a", "vxlan", "10.244.2.0/24", "0.0.0.0"), subnet.Unroutable},
		"the link's last address":      {"vxlan", lease("a", "vxlan", "10.244.2.0/24", "192.0.2.63"), subnet.Unroutable},
		"our address":                  {"vxlan", lease("a", "vxlan", "10.244.2.0/24", "192.0.2.1"), subnet.OwnAddress},
		"two families":                 {"vxlan", lease("a", "vxlan", "fc00:0:0:2::/64", "192.0.2.2"), subnet.MixedFamilies},
		"our subnet":                   {"vxlan", lease("a", "vxlan", "10.244.1.0/24", "192.0.2.2"), subnet.DuplicateSubnet},
		"last address of another link": {"vxlan", lease("a", "vxlan", "10.244.2.0/24", "192.0.2.191"), ""},
	} {
		snap := subnet.Snapshot{Local: lease("n1", test.ours, "10.244.1.0/24", "192.0.2.1", "fc00:0:0:1::/64", "2001:db8::1"),
			Peers: []subnet.Lease{test.peer}}
		peers, skips := backend.Peers(prefixes("10.244.0.0/16", "fc00::/48"), node, snap)
		var codes []subnet.Code
		for _, s := range skips {
			codes = append(codes, s.Code)
		}
		want := []subnet.Code{test.want}
		if test.want == "" {
			want = nil
		}
		if !slices.Equal(codes, want) || len(peers) != 1-len(want) {
			t.Errorf("%s: peers %v, codes %v, want %v", name, peers, codes, want)
		}
	}
}

// TestDirectRoute: the way to a peer on the same link.
func TestDirectRoute(t *testing.T) {
	both := lease("a", "host-gw", "10.244.2.0/24", "192.0.2.2", "fc00:0:0:2::/64", "2001:db8::2").Stacks
	for _, want := range []netstate.Route{
		{Dst: both[0].Subnet, Via: both[0].Underlay, Dev: "eth0", Protocol: netstate.Protocol},
		{Dst: both[1].Subnet, Via: both[1].Underlay, Dev: "eth0", Protocol: netstate.Protocol, Metric: 1024},
	} {
		peer := backend.Peer{Node: "a", Stack: subnet.Stack{Subnet: want.Dst, Underlay: want.Via}}
		if got := backend.DirectRoute(backend.Underlay{Dev: "eth0"}, peer, false); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		want.Metric = netstate.SpreadMetric(want.Dst)
		if got := backend.DirectRoute(backend.Underlay{Dev: "eth0"}, peer, true); got != want {
			t.Errorf("with a metric of its own: got %+v, want %+v", got, want)
		}
	}
}

// TestClaimsOfOnePeer: a node has what it published, wherever it is.
func TestClaimsOfOnePeer(t *testing.T) {
	claims := backend.NewClaims(subnet.Snapshot{}, func(thing, string) bool { return false })
	first, second := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.1:2")
	claims.Enter("key", "a", first)
	claims.Enter("key", "a", second)
	for _, place := range []netip.AddrPort{first, second} {
		if holder, denied := claims.Holder("key", "a", place); denied || holder != "a" {
			t.Errorf("at %s: %s has it, denied: %t", place, holder, denied)
		}
	}
}

// TestForwardRulesSetTwice: the last value counts.
func TestForwardRulesSetTwice(t *testing.T) {
	f := backend.ForwardFirst
	if err := f.Set("false"); err != nil || f != backend.ForwardOff {
		t.Errorf("false after first: %s, %v", f, err)
	}
}

// TestOptionsOfNoJSON: the error says what is wrong with the text.
func TestOptionsOfNoJSON(t *testing.T) {
	_, err := backend.ParseOptions([]byte(`{`), &struct{ VNI int }{})
	if err == nil || !strings.Contains(err.Error(), "unexpected end of JSON") {
		t.Errorf("half an object: %v", err)
	}
}
