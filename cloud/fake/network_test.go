package fake_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
)

// TestMemory: the network in memory passes the suite.
func TestMemory(t *testing.T) {
	cloudtest.Run(t, func(*testing.T) cloudtest.World {
		n := &fake.Network{ID: "vpc-1"}
		w := cloudtest.World{Network: n, Six: true}
		for i, id := range []string{"eni-1", "eni-2"} {
			local := []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
			n.AddNIC(fake.NIC{ID: id, Addrs: local})
			w.Nodes[i], w.Local[i] = n.Node(id), local
		}
		return w
	})
}

// TestChanged: whoever follows the network is told of each change.
func TestChanged(t *testing.T) {
	n := &fake.Network{}
	told := 0
	n.Changed(func() { told++ })
	n.AddNIC(fake.NIC{ID: "eni-1"})
	_ = n.Apply(cloud.Change{Op: cloud.Create, Route: cloud.Route{Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: "eni-1"}})
	n.RemoveNIC("eni-1")
	if told != 3 || n.Routes()[0].State != cloud.Blackhole {
		t.Errorf("told %d times, routes %v", told, n.Routes())
	}
}
