// Package ali_test judges Twill's client of Alibaba Cloud, and the front that plays that cloud, by what others wrote:
// Alibaba's SDKs, and the client that flannel used.
package ali_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/ali"
)

const region, keyID, keySecret = "cn-hangzhou", "LTAI-test", "a+secret/with=signs*~"

// front is a VPC with two instances.
type front struct {
	network *fake.Network
	url     string
	node    cloud.Cloud // the API as i-1 sees it
	self    cloud.Self

	mu   sync.Mutex
	sent []url.Values // requests with a right signature
}

func newFront(t *testing.T) *front {
	t.Helper()
	f := &front{network: &fake.Network{ID: "vpc-1"}, self: cloud.Self{Target: "i-1", Network: "vpc-1", Tables: []string{"vtb-main"}}}
	f.network.AddTable(fake.Table{ID: "vtb-main", Main: true})
	one := fake.NIC{ID: "i-1", MAC: "00:16:3e:00:00:01", Subnet: "vsw-1", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.10")}}
	two := fake.NIC{ID: "i-2", MAC: "00:16:3e:00:00:02", Subnet: "vsw-1", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.11")}}
	f.network.AddNIC(one)
	f.network.AddNIC(two)
	server := httptest.NewServer(fake.Ali(f.network, fake.AliOptions{
		Region: region, Keys: map[string]string{keyID: keySecret}, Block: netip.MustParsePrefix("192.168.0.0/16"),
		VSwitches: map[string]netip.Prefix{"vsw-1": netip.MustParsePrefix("192.168.1.0/24")},
		Caller:    func(*http.Request) (fake.NIC, bool) { return one, true },
		Judge: func(_ string, parameters url.Values) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sent = append(f.sent, parameters)
		},
		Failed: func(action, code, message string) { t.Logf("refused: %s: %s: %s", action, code, message) },
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	t.Setenv("VPC_ENDPOINT", f.url)
	t.Setenv("ECS_ENDPOINT", f.url)
	var err error
	if f.node, err = ali.NewAt(cloud.Options{KeyID: keyID, KeySecret: cloud.NewSecret(keySecret)}, f.url); err != nil {
		t.Fatal(err)
	}
	return f
}

func route(dst, target string) cloud.Route {
	return cloud.Route{Table: "vtb-main", Dst: netip.MustParsePrefix(dst), Target: target}
}

// requests returns one request at least of each action that Twill's client uses.
func (f *front) requests(t *testing.T) map[string][]url.Values {
	t.Helper()
	if _, err := f.node.Self(t.Context(), []netip.Addr{netip.MustParseAddr("192.168.1.10")}); err != nil {
		t.Fatal(err)
	}
	own, old, several := route("10.244.1.0/24", "i-1"), route("10.244.2.0/24", "i-2"), route("10.244.3.0/24", "i-1,i-2")
	f.network.Set(old, several)
	if _, err := f.node.Check(t.Context(), f.self); err != nil {
		t.Fatal(err)
	}
	for _, c := range []cloud.Change{{Op: cloud.Create, Route: own}, {Op: cloud.Replace, Route: route("10.244.2.0/24", "i-1"), Old: old},
		{Op: cloud.Delete, Route: several}} {
		if err := f.node.Apply(t.Context(), f.self, c); err != nil {
			t.Fatal(err)
		}
	}
	var many []cloud.Route
	for i := range 150 {
		many = append(many, cloud.Route{Table: "vtb-main", Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), Target: "i-1"})
	}
	f.network.Set(many...)
	if all, err := f.node.List(t.Context(), f.self); err != nil || len(all) < len(many) {
		t.Fatalf("%d routes, %v", len(all), err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	by := map[string][]url.Values{}
	for _, r := range f.sent {
		by[r.Get("Action")] = append(by[r.Get("Action")], r)
	}
	if len(by) != len(ali.Permissions) {
		t.Fatalf("%d actions were asked for, want all %d", len(by), len(ali.Permissions))
	}
	return by
}
