package aws_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/aws"
	"github.com/twill-net/twill/subnet"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var pools = []subnet.Pool{
	{Network: netip.MustParsePrefix("10.244.0.0/14"), SubnetLen: 24},
	{Network: netip.MustParsePrefix("fd00:244::/48"), SubnetLen: 64},
}

// network returns a VPC with two machines. The first has a second interface, as nodes with Amazon's own CNI have.
func network() *fake.Network {
	n := &fake.Network{ID: "vpc-1"}
	n.AddNIC(fake.NIC{ID: "eni-1b", Instance: "i-1", Addrs: []netip.Addr{addr("172.31.0.201")}, Subnet: "subnet-2"})
	for i := range 2 {
		n.AddNIC(fake.NIC{ID: fmt.Sprintf("eni-%d", i+1), Instance: fmt.Sprintf("i-%d", i+1), Subnet: "subnet-1",
			Addrs: []netip.Addr{addr(fmt.Sprintf("172.31.0.%d", i+1)), addr(fmt.Sprintf("2001:db8::%d", i+1))}})
	}
	n.AddTable(fake.Table{ID: "rtb-main", Main: true})
	n.AddTable(fake.Table{ID: "rtb-1", Subnets: []string{"subnet-1"}})
	return n
}

// serve runs a handler, and returns its address.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// front serves a network for the machine with a NIC.
func front(t *testing.T, n *fake.Network, nic string, o fake.AWSOptions) string {
	t.Helper()
	o.Caller = func(*http.Request) (fake.NIC, bool) { return n.NIC(func(n fake.NIC) bool { return n.ID == nic }) }
	o.CIDRs = append(o.CIDRs, netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("2001:db8::/56"))
	return serve(t, fake.AWS(n, o))
}

// clean leaves nothing of the tester's own credentials and settings.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_SECURITY_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_EC2", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}

// open returns the API with the metadata and EC2 at addresses of this machine.
func open(t *testing.T, metadata, api string, o cloud.Options) cloud.Cloud {
	t.Helper()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
	t.Setenv("AWS_ENDPOINT_URL", api)
	if o.Pools == nil {
		o.Pools = pools
	}
	c, err := aws.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// node returns the API as the first machine sees it.
func node(t *testing.T, n *fake.Network, o cloud.Options) cloud.Cloud {
	t.Helper()
	clean(t)
	url := front(t, n, "eni-1", fake.AWSOptions{})
	return open(t, url, url, o)
}

var local = []netip.Addr{addr("172.31.0.1"), addr("2001:db8::1")}

func self(t *testing.T, c cloud.Cloud) cloud.Self {
	t.Helper()
	s, err := c.Self(t.Context(), local)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSuite: the client passes the suite against the front, also when each page has one table.
func TestSuite(t *testing.T) {
	for name, o := range map[string]fake.AWSOptions{"": {}, "pages": {PageSize: 1}} {
		t.Run(name, func(t *testing.T) {
			cloudtest.Run(t, func(t *testing.T) cloudtest.World {
				clean(t)
				n := network()
				w := cloudtest.World{Network: n, Six: true}
				for i := range w.Nodes {
					url := front(t, n, fmt.Sprintf("eni-%d", i+1), o)
					w.Nodes[i] = open(t, url, url, cloud.Options{})
					w.Local[i] = []netip.Addr{addr(fmt.Sprintf("172.31.0.%d", i+1)), addr(fmt.Sprintf("2001:db8::%d", i+1))}
				}
				return w
			})
		})
	}
}

// TestSelf: the interface is found by the node's addresses, and its tables as they are given, of its subnet, or the
// main one.
func TestSelf(t *testing.T) {
	for name, test := range map[string]struct {
		tables []string
		local  string
		want   cloud.Self
		err    string
	}{
		"the subnet's table": {nil, "172.31.0.1 2001:db8::1", cloud.Self{Target: "eni-1", Network: "vpc-1",
			Tables: []string{"rtb-1"}}, ""},
		"the main table": {nil, "172.31.0.201", cloud.Self{Target: "eni-1b", Network: "vpc-1",
			Tables: []string{"rtb-main"}}, ""},
		"given tables": {[]string{"rtb-8", "rtb-9", "rtb-8"}, "2001:db8::1",
			cloud.Self{Target: "eni-1", Network: "vpc-1", Tables: []string{"rtb-8", "rtb-9"}}, ""},
		"mapped address": {nil, "::ffff:172.31.0.1", cloud.Self{Target: "eni-1", Network: "vpc-1",
			Tables: []string{"rtb-1"}}, ""},
		"nobody's": {nil, "172.31.0.9", cloud.Self{},
			"no network interface of this instance has the address 172.31.0.9"},
		"of two": {nil, "172.31.0.201 2001:db8::1", cloud.Self{}, "one interface must have both"},
		"none":   {nil, "", cloud.Self{}, "no address"},
	} {
		t.Run(name, func(t *testing.T) {
			var local []netip.Addr
			for _, s := range strings.Fields(test.local) {
				local = append(local, addr(s))
			}
			got, err := node(t, network(), cloud.Options{Tables: test.tables}).Self(t.Context(), local)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %+v, %v; want an error with %q", got, err, test.err)
				}
				return
			}
			if err != nil || got.Target != test.want.Target || got.Network != test.want.Network || !slices.Equal(got.Tables,
				test.want.Tables) {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
	if _, err := aws.New(cloud.Options{Tables: []string{"main"}}); err == nil || !strings.Contains(err.Error(), "rtb-") {
		t.Errorf("a table that is none: %v", err)
	}
}

// TestForeignTargets: routes that lead to no interface are listed, with a target that is no node's.
func TestForeignTargets(t *testing.T) {
	n := network()
	targets := []string{"igw-1", "nat-1", "tgw-1", "pcx-1", "eigw-1", "vpce-1", "lgw-1", "cagw-1", "i-9", "eni-9"}
	var all []cloud.Route
	for i, to := range targets {
		all = append(all, cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
			Target: to})
	}
	n.Set(all...)
	c := node(t, n, cloud.Options{})
	got, err := c.List(t.Context(), self(t, c))
	if err != nil || len(got) != len(all)+2 { // with the VPC's own
		t.Fatalf("%v, %v", got, err)
	}
	for _, r := range all {
		if !slices.Contains(got, r) {
			t.Errorf("%s is missing in %v", r, got)
		}
	}
	if got[0].Target != "local" {
		t.Errorf("the VPC's own route is %s", got[0])
	}
}

// TestPropagated: beside a route of a virtual private gateway a static one is made, because it cannot be replaced.
func TestPropagated(t *testing.T) {
	n := network()
	r := cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: "vgw-1", Mark: "propagated"}
	n.Set(r)
	c := node(t, n, cloud.Options{})
	s := self(t, c)
	all, err := c.List(t.Context(), s)
	if err != nil || !slices.Contains(all, r) {
		t.Fatalf("%v, %v: want %+v", all, err, r)
	}
	n.Set() // the front keeps one route to a destination
	own := r
	own.Target = s.Target
	if err := c.Apply(t.Context(), s, cloud.Change{Op: cloud.Replace, Route: own, Old: r}); err != nil {
		t.Error(err)
	}
}

// TestOutranked: a propagated route counts nothing beside a static one to the same destination, so it is none that a node would
// have to end.
func TestOutranked(t *testing.T) {
	n := network()
	own := cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: "eni-1"}
	beside := own
	beside.Target, beside.Mark = "vgw-1", "propagated"
	n.Set(beside, own)
	c := node(t, n, cloud.Options{})
	all, err := c.List(t.Context(), self(t, c))
	if err != nil || !slices.Contains(all, own) || slices.Contains(all, beside) {
		t.Errorf("%v, %v", all, err)
	}
}

// TestDeleteIsSafe: a route that somebody else has by now is not deleted.
func TestDeleteIsSafe(t *testing.T) {
	n := network()
	r := cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: "eni-1"}
	c := node(t, n, cloud.Options{})
	s := self(t, c)
	for name, now := range map[string]cloud.Route{
		"another's": {Table: "rtb-1", Dst: r.Dst, Target: "eni-2"},
		"alive":     {Table: "rtb-1", Dst: r.Dst, Target: "eni-1"},
	} {
		was := r
		if name == "alive" {
			was.State = cloud.Blackhole
		}
		n.Set(now)
		if err := c.Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: was}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !slices.Equal(n.Routes(), []cloud.Route{now}) {
			t.Errorf("%s: left are %v", name, n.Routes())
		}
	}
}
