package gce_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/gce"
	"github.com/twill-net/twill/subnet"
)

var pools = []subnet.Pool{{Network: prefix("10.244.0.0/14"), SubnetLen: 24}, {Network: prefix("fd00:244::/32"), SubnetLen: 64}}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// machines are two of one network; in a Shared VPC their project is another one than the network's.
func machines(shared bool) []fake.NIC {
	nics := []fake.NIC{
		{MAC: "42:01:0a:80:00:02", Addrs: []netip.Addr{addr("10.128.0.2"), addr("fd20:1::2")}, Subnet: "a"},
		{MAC: "42:01:0a:80:00:03", Addrs: []netip.Addr{addr("10.128.0.3"), addr("fd20:1::3")}, Subnet: "a"},
	}
	for i, name := range []string{"node-a", "node-b"} {
		nics[i].Instance = "projects/host-1/zones/europe-west1-b/instances/" + name
		nics[i].ID = nics[i].Instance
		if shared {
			nics[i].Instance = "projects/service-1/zones/europe-west1-b/instances/" + name
			nics[i].ID = nics[i].Addrs[0].String()
		}
	}
	return nics
}

// world returns a network with two machines behind the front.
func world(t *testing.T, o fake.GCEOptions, shared bool) cloudtest.World {
	n := &fake.Network{ID: "projects/host-1/global/networks/prod"}
	w := cloudtest.World{Network: n, Six: !shared}
	server := httptest.NewServer(fake.GCE(n, o))
	t.Cleanup(server.Close)
	t.Setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", server.URL+"/compute/v1/")
	for i, nic := range machines(shared) {
		n.AddNIC(nic)
		w.Nodes[i], w.Local[i] = node(t, n, o, nic), nic.Addrs
	}
	return w
}

// node returns the API as a machine sees it, which has a metadata service of its own.
func node(t *testing.T, n *fake.Network, o fake.GCEOptions, nic fake.NIC) cloud.Cloud {
	t.Helper()
	o.Caller = func(*http.Request) (fake.NIC, bool) { return nic, true }
	server := httptest.NewServer(fake.GCE(n, o))
	t.Cleanup(server.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	c, err := gce.New(cloud.Options{Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFront: the front passes the suite, with machines of the network's project and in a Shared VPC, with changes that take a
// while, and with another interface before that of the network.
func TestFront(t *testing.T) {
	for name, test := range map[string]struct {
		options fake.GCEOptions
		shared  bool
	}{
		"own project":      {},
		"Shared VPC":       {shared: true},
		"slow":             {options: fake.GCEOptions{Operation: 100 * time.Millisecond}},
		"second interface": {options: fake.GCEOptions{Elsewhere: []fake.NIC{{Addrs: []netip.Addr{addr("172.16.0.9")}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			cloudtest.Run(t, func(t *testing.T) cloudtest.World { return world(t, test.options, test.shared) })
		})
	}
}
