package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestNetworks: what the node cannot do without, what is in use and what is idle, as far as it lies in the pods' network.
// An idle network is in the way of pods if it is as narrow as a subnet.
func TestNetworks(t *testing.T) {
	list := func(texts ...string) (all []netip.Prefix) {
		for _, s := range texts {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	interfaces := []netstate.Interface{
		{Name: "lo", Up: true, Running: true, Addrs: list("192.168.9.9/32", "::1/128"), OnLink: list("192.168.9.9/32")},
		{Name: "eth1", Up: true, Running: true, Addrs: list("192.168.33.101/24", "192.168.33.200/32"), OnLink: list("192.168.33.0/24"),
			Default: []netstate.Family{netstate.IPv4}, Gateways: []netip.Addr{netip.MustParseAddr("192.168.33.1")}},
		{Name: "eth2", Up: true, Running: true, Addrs: list("192.168.0.7/16", "10.1.0.1/24"), OnLink: list("192.168.0.0/16", "10.1.0.0/24")},
		{Name: "docker0", Up: true, Addrs: list("192.168.77.1/20"), OnLink: list("192.168.64.0/20")},
		{Name: "docker1", Up: true, Addrs: list("192.168.78.1/24"), OnLink: list("192.168.78.0/24")},
		{Name: "docker2", Addrs: list("192.168.79.1/24")},
		{Name: "cni0", Up: true, Running: true, Addrs: list("192.168.5.1/24"), OnLink: list("192.168.5.0/24")},
		{Name: "flannel.1", Up: true, Running: true, Addrs: list("192.168.5.0/32")},
		{Name: "veth1", Owned: true, Addrs: list("192.168.5.9/32")},
	}
	const eth1 = "192.168.33.101/32 this node's own address on eth1 used\n" +
		"192.168.33.200/32 this node's own address on eth1 used\n" +
		"192.168.33.1/32 this node's gateway on eth1 used\n" +
		"192.168.33.0/24 a network of this node on eth1 used\n"
	for name, c := range map[string]struct{ bridge, want string }{
		"the agent makes the bridge": {"cni0", "192.168.9.9/32 this node's own address on lo used\n" + eth1 +
			"192.168.0.7/32 this node's own address on eth2 used\n192.168.0.0/16 a network of this node on eth2 used\n" +
			"192.168.77.1/32 this node's own address on docker0\n192.168.64.0/20 a network of this node on docker0\n" +
			"192.168.78.1/32 this node's own address on docker1\n192.168.78.0/24 a network of this node on docker1 used\n" +
			"192.168.79.1/32 this node's own address on docker2\n192.168.79.0/24 a network of this node on docker2\n"},
		"others make the bridge": {"", eth1},
	} {
		t.Run(name, func(t *testing.T) {
			p := Planner{Base: backend.BaseConfig{Bridge: c.bridge},
				Network: subnet.Config{Pools: []subnet.Pool{{Network: netip.MustParsePrefix("192.168.0.0/16"), SubnetLen: 24}}}}
			var got strings.Builder
			for _, n := range p.networks(interfaces, []backend.Underlay{{Dev: "eth1"}}, nil) {
				f := n.Foreign
				fmt.Fprint(&got, f.Prefix, " ", f.What)
				if n.Used {
					fmt.Fprint(&got, " used")
				}
				fmt.Fprintln(&got)
			}
			if got.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", got.String(), c.want)
			}
		})
	}
}
