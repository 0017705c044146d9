package ali_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/ali"
)

var withKey = cloud.Options{KeyID: keyID, KeySecret: cloud.NewSecret(keySecret)}

const keyID, keySecret = "LTAI-test", "a-secret-that-nobody-may-see"

// noKeys takes access keys out of the environment.
func noKeys(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ACCESS_KEY_ID", "ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_ID",
		"ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN", "ALICLOUD_CLIENT_SCHEME",
		"ALIBABA_CLOUD_NETWORK_TYPE"} {
		t.Setenv(name, "")
	}
}

// lab is a VPC with two instances, in vsw-1 and vsw-2, which both use the main table.
type lab struct {
	network *fake.Network
	urls    [2]string // of the front, as each instance sees it
	local   [2][]netip.Addr
}

// newLab serves a VPC. Its front is the APIs' endpoint.
func newLab(t *testing.T, o fake.AliOptions) lab {
	t.Helper()
	noKeys(t)
	l := lab{network: &fake.Network{ID: "vpc-1"}}
	l.network.AddTable(fake.Table{ID: "vtb-main", Main: true})
	if o.Keys == nil {
		o.Keys = map[string]string{keyID: keySecret}
	}
	o.Block = netip.MustParsePrefix("192.168.0.0/16")
	o.VSwitches = map[string]netip.Prefix{
		"vsw-1": netip.MustParsePrefix("192.168.1.0/24"), "vsw-2": netip.MustParsePrefix("192.168.2.0/24")}
	ports := map[string]fake.NIC{}
	o.Caller = func(r *http.Request) (fake.NIC, bool) {
		nic, ok := ports[r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()]
		return nic, ok
	}
	front := fake.Ali(l.network, o)
	for i := range l.urls {
		nic := fake.NIC{ID: fmt.Sprintf("i-%d", i+1), MAC: fmt.Sprintf("00:16:3e:00:00:0%d", i+1),
			Subnet: fmt.Sprintf("vsw-%d", i+1), Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.168.%d.10", i+1))}}
		l.network.AddNIC(nic)
		l.local[i] = nic.Addrs
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)
		ports[server.Listener.Addr().String()] = nic
		l.urls[i] = server.URL
	}
	t.Setenv("VPC_ENDPOINT", l.urls[0])
	t.Setenv("ECS_ENDPOINT", l.urls[0])
	return l
}

// node returns the API as an instance sees it.
func (l lab) node(t *testing.T, i int, o cloud.Options) cloud.Cloud {
	t.Helper()
	api, err := ali.NewAt(o, l.urls[i])
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func TestCloud(t *testing.T) {
	for name, test := range map[string]struct {
		front  fake.AliOptions
		client cloud.Options
	}{
		"key":               {client: withKey},
		"role":              {front: fake.AliOptions{Role: "twill", Keys: map[string]string{}}},
		"metadata by token": {front: fake.AliOptions{Role: "twill", TokenOnly: true}},
		"table named":       {client: cloud.Options{KeyID: keyID, KeySecret: cloud.NewSecret(keySecret), Tables: []string{"vtb-main"}}},
	} {
		t.Run(name, func(t *testing.T) {
			cloudtest.Run(t, func(t *testing.T) cloudtest.World {
				l := newLab(t, test.front)
				nodes := [2]cloud.Cloud{l.node(t, 0, test.client), l.node(t, 1, test.client)}
				return cloudtest.World{Nodes: nodes, Local: l.local, Network: l.network}
			})
		})
	}
}
