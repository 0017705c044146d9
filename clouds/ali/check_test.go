package ali_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/ali"
)

func newServer(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Setenv("VPC_ENDPOINT", server.URL)
	t.Setenv("ECS_ENDPOINT", server.URL)
	return server.URL
}

// troubles returns what a node that has just started finds.
func troubles(t *testing.T, l lab, o cloud.Options) []cloud.Trouble {
	t.Helper()
	api := l.node(t, 0, o)
	s, err := api.Self(t.Context(), l.local[0])
	if err != nil {
		t.Fatal(err)
	}
	found, err := api.Check(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestOverlap: pools in the VPC's blocks or in that of the cloud's services.
func TestOverlap(t *testing.T) {
	for network, want := range map[string]string{
		"10.244.0.0/16": "", "192.168.128.0/17": "192.168.0.0/16", "192.168.1.0/24": "192.168.0.0/16",
		"100.100.0.0/16": "100.64.0.0/10", "192.0.0.0/8": "192.168.0.0/16",
	} {
		o := withKey
		o.Pools = pool(network)
		got := troubles(t, newLab(t, fake.AliOptions{}), o)
		switch {
		case want == "" && len(got) > 0:
			t.Errorf("%s: %+v", network, got)
		case want != "" && (len(got) != 1 || got[0].ID != cloud.Overlap || !strings.Contains(got[0].Actual, want)):
			t.Errorf("%s: %+v, want that it overlaps %s", network, got, want)
		}
	}
}

// TestUnlisted: a table that another vSwitch uses is named, unless it is kept too.
func TestUnlisted(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	l.network.AddTable(fake.Table{ID: "vtb-2", Subnets: []string{"vsw-2"}})
	l.network.AddTable(fake.Table{ID: "vtb-unused"})
	got := troubles(t, l, withKey)
	if len(got) != 1 || got[0].ID != cloud.Unlisted || got[0].Object != "vtb-2" || !strings.Contains(got[0].Fix, `["vtb-main","vtb-2"]`) {
		t.Errorf("%+v", got)
	}
	o := withKey
	o.Tables = []string{"vtb-main", "vtb-2"}
	if got := troubles(t, l, o); len(got) > 0 {
		t.Errorf("both are kept: %+v", got)
	}
	s, err := l.node(t, 1, withKey).Self(t.Context(), l.local[1])
	if err != nil || len(s.Tables) != 1 || s.Tables[0] != "vtb-2" {
		t.Errorf("the node in vsw-2: %+v, %v", s, err)
	}
}

// TestForwardingDenied: a check that cannot be turned off is reported with the command that does.
func TestForwardingDenied(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	l.network.Break(fake.Faults{Denied: []string{"ecs:ModifyNetworkInterfaceAttribute"}})
	got := troubles(t, l, withKey)
	if len(got) != 2 || got[0].ID != cloud.Denied || got[1].ID != cloud.ForwardingOff || !strings.Contains(got[1].Fix, "eni-1") {
		t.Errorf("%+v", got)
	}
	if other, _ := l.network.NIC(func(n fake.NIC) bool { return n.ID == "i-2" }); other.Forwards {
		t.Error("another node's was touched")
	}
}

// TestKeys: where an access key is looked for, in this order.
func TestKeys(t *testing.T) {
	l := newLab(t, fake.AliOptions{Keys: map[string]string{"config": "s1", "flannel": "s2", "alibaba": "s3"}, Role: "twill"})
	t.Setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "alibaba")
	t.Setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "s3")
	if err := l.try(t, cloud.Options{}); err != nil {
		t.Errorf("Alibaba's variables: %v", err)
	}
	t.Setenv("ACCESS_KEY_ID", "flannel")
	t.Setenv("ACCESS_KEY_SECRET", "wrong")
	if err := l.try(t, cloud.Options{}); err == nil {
		t.Error("flannel's variables are not before Alibaba's")
	}
	if err := l.try(t, cloud.Options{KeyID: "config", KeySecret: cloud.NewSecret("s1")}); err != nil {
		t.Errorf("net-conf.json's are not before flannel's: %v", err)
	}
	t.Setenv("ACCESS_KEY_SECRET", "")
	if _, err := ali.New(cloud.Options{}); err == nil || !strings.Contains(err.Error(), "ACCESS_KEY_SECRET is not") {
		t.Errorf("half a key: %v", err)
	}
	if _, err := ali.New(cloud.Options{KeySecret: cloud.NewSecret("x")}); err == nil || !strings.Contains(err.Error(), "AccessKeyID is not") {
		t.Errorf("half a key: %v", err)
	}
}

// try lists once.
func (l lab) try(t *testing.T, o cloud.Options) error {
	t.Helper()
	_, err := l.node(t, 0, o).List(t.Context(), self)
	return err
}

// TestNoKey: neither a key nor a role.
func TestNoKey(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	err := l.try(t, cloud.Options{})
	plain(t, "List", err)
	if !errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), "RAM role") {
		t.Errorf("%v", err)
	}
}

// TestEndpoint: what the variables of Alibaba's tools may say.
func TestEndpoint(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	host := strings.TrimPrefix(l.urls[0], "http://")
	for _, test := range []struct{ endpoint, scheme, fails string }{
		{endpoint: "http://" + host}, {endpoint: "http://" + host + "/"}, {endpoint: host, scheme: "HTTP"},
		{endpoint: host, fails: "HTTPS"}, {endpoint: "ftp://" + host, fails: "VPC_ENDPOINT is no host"},
		{endpoint: "http://user:pass@" + host, fails: "VPC_ENDPOINT is no host"}, {endpoint: "http://a b", fails: "VPC_ENDPOINT is no host"},
	} {
		t.Setenv("VPC_ENDPOINT", test.endpoint)
		t.Setenv("ALICLOUD_CLIENT_SCHEME", test.scheme)
		err := l.try(t, withKey)
		if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestRoleRenewed: a role's key is asked for once, and again when the API says that it has ended.
func TestRoleRenewed(t *testing.T) {
	noKeys(t)
	lent, ended := 0, ""
	mux := http.NewServeMux()
	mux.HandleFunc("/latest/meta-data/region-id", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "cn-hangzhou") })
	mux.HandleFunc("/latest/meta-data/ram/security-credentials/", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") {
			fmt.Fprint(w, "twill")
			return
		}
		lent++
		fmt.Fprintf(w, `{"Code": "Success", "AccessKeyId": "STS.%d", "AccessKeySecret": "lent-secret", "SecurityToken": "lent-token",
			"Expiration": %q}`, lent, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("AccessKeyId") == ended {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"Code": "InvalidSecurityToken.Expired", "Message": "Specified SecurityToken is expired: lent-token"}`)
			return
		}
		fmt.Fprint(w, `{}`)
	})
	url := newServer(t, mux)
	api, err := ali.NewAt(cloud.Options{}, url)
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		_, err := api.List(t.Context(), self)
		return err
	}
	if err := errors.Join(list(), list()); err != nil || lent != 1 {
		t.Errorf("%v, %d keys for two calls", err, lent)
	}
	ended = "STS.1"
	err = list()
	plain(t, "with the ended key", err)
	if errors.Is(err, cloud.ErrDenied) {
		t.Errorf("%v: that is no missing permission", err)
	}
	if err := list(); err != nil || lent != 2 {
		t.Errorf("after that: %v, %d keys", err, lent)
	}
}

// TestIPv6Underlay: a node is found by an address of IPv6 too.
func TestIPv6Underlay(t *testing.T) {
	noKeys(t)
	n := &fake.Network{ID: "vpc-1"}
	n.AddTable(fake.Table{ID: "vtb-main", Main: true})
	nic := fake.NIC{ID: "i-1", MAC: "00:16:3e:00:00:01", Subnet: "vsw-1", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.10"),
		netip.MustParseAddr("2001:db8::1")}}
	n.AddNIC(nic)
	server := newServer(t, fake.Ali(n, fake.AliOptions{Keys: map[string]string{keyID: keySecret},
		Caller: func(*http.Request) (fake.NIC, bool) { return nic, true }}))
	api, err := ali.NewAt(withKey, server)
	if err != nil {
		t.Fatal(err)
	}
	s, err := api.Self(t.Context(), nic.Addrs[1:])
	if err != nil || s.Target != "i-1" || s.Network != "vpc-1" || s.Tables[0] != "vtb-main" {
		t.Errorf("%+v, %v", s, err)
	}
}
