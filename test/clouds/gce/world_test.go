package gce

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/gce"
	"github.com/twill-net/twill/subnet"
)

const project, vpc = "twill-test", "projects/twill-test/global/networks/prod"

// world returns a network with two machines, whose API is the handler that around makes of the front.
func world(t *testing.T, around func(*fake.Network, http.Handler) http.Handler) cloudtest.World {
	t.Helper()
	n := &fake.Network{ID: vpc}
	w := cloudtest.World{Network: n, Six: true}
	serve(t, "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "/compute/v1/", around(n, fake.GCE(n, fake.GCEOptions{})))
	for i, name := range []string{"node-a", "node-b"} {
		id := "projects/" + project + "/zones/europe-west1-b/instances/" + name
		nic := fake.NIC{ID: id, Instance: id, MAC: "42:01:0a:80:00:02", Addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 128, 0, byte(i + 2)})}}
		n.AddNIC(nic)
		options := fake.GCEOptions{Caller: func(*http.Request) (fake.NIC, bool) { return nic, true }}
		url := serve(t, "GCE_METADATA_HOST", "", fake.GCE(n, options))
		t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(url, "http://"))
		c, err := gce.New(cloud.Options{Pools: []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/14"), SubnetLen: 24}}})
		if err != nil {
			t.Fatal(err)
		}
		w.Nodes[i], w.Local[i] = c, nic.Addrs
	}
	return w
}

// serve starts a server, and sets a variable to its address.
func serve(t *testing.T, variable, path string, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv(variable, s.URL+path)
	return s.URL
}
