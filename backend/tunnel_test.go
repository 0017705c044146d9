package backend_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// TestTunnel: what every overlay device has beside itself.
func TestTunnel(t *testing.T) {
	for _, test := range []struct {
		subnet string
		sysctl netstate.Sysctl
		route  netstate.Route
		addr   string
	}{
		{"10.244.2.0/24", netstate.Sysctl{Name: "net/ipv4/conf/tun0/rp_filter", Value: "2"},
			netstate.Route{Dev: "tun0", Protocol: netstate.Protocol}, "10.244.2.0/32"},
		{"fc00:0:0:2::/64", netstate.Sysctl{Name: "net/ipv6/conf/tun0/accept_ra", Value: "0"},
			netstate.Route{Dev: "tun0", Protocol: netstate.Protocol, Metric: 1024}, "fc00:0:0:2::/128"},
	} {
		subnet, want := netip.MustParsePrefix(test.subnet), netip.MustParsePrefix(test.addr)
		test.route.Dst = subnet
		if got := backend.TunnelSysctl("tun0", netstate.FamilyOf(subnet.Addr())); got != test.sysctl {
			t.Errorf("%s: sysctl %+v, want %+v", test.subnet, got, test.sysctl)
		}
		if got := backend.TunnelRoute("tun0", backend.Peer{Stack: lease("b", "vxlan", test.subnet, "").Stacks[0]}, 0); got != test.route {
			t.Errorf("%s: route %+v, want %+v", test.subnet, got, test.route)
		}
		address := netstate.Addr{Dev: "tun0", Prefix: want, NoDAD: want.Addr().Is6()}
		if got := backend.TunnelAddr("tun0", subnet); got != address {
			t.Errorf("%s: address %+v, want %+v", test.subnet, got, address)
		}
	}
}

// TestUnderlay: a node has an underlay of a family or none, and never the other family's.
func TestUnderlay(t *testing.T) {
	four := backend.Underlay{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1")}
	six := backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1")}
	both := backend.Node{Underlays: []backend.Underlay{four, six}}
	for family, want := range map[netstate.Family]string{netstate.IPv4: "eth0", netstate.IPv6: "eth1"} {
		if u, ok := both.Underlay(family); !ok || u.Dev != want {
			t.Errorf("the underlay of a dual-stack node is %s, %t, want %s", u.Dev, ok, want)
		}
	}
	if u, ok := (backend.Node{Underlays: []backend.Underlay{four}}).Underlay(netstate.IPv6); ok || u.Local.IsValid() {
		t.Errorf("an IPv4 node has the IPv6 underlay %v", u)
	}
}
