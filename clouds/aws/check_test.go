package aws_test

import (
	"bytes"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/subnet"
)

// TestCheck: what keeps packets from passing is found, and each fix is a command.
func TestCheck(t *testing.T) {
	pods := func(table, dst, to string) cloud.Route {
		return cloud.Route{Table: table, Dst: netip.MustParsePrefix(dst), Target: to}
	}
	for name, test := range map[string]struct {
		o      cloud.Options
		denied []string
		routes []cloud.Route
		table  fake.Table
		want   []string // ID, object, and a part of the fix
	}{
		"nothing": {},
		"may not modify": {denied: []string{"ec2:ModifyNetworkInterfaceAttribute"}, want: []string{
			"cloud-denied|ec2:ModifyNetworkInterfaceAttribute|aws iam put-role-policy --role-name twill-node",
			"cloud-forwarding-off|eni-1|aws ec2 modify-network-interface-attribute --network-interface-id eni-1 --no-source-dest-check"}},
		"may not read": {denied: []string{"ec2:DescribeNetworkInterfaces"}, want: []string{
			"cloud-denied|ec2:DescribeNetworkInterfaces|ec2:DescribeNetworkInterfaces"}},
		"may not write": {denied: []string{"ec2:CreateRoute", "ec2:ReplaceRoute", "ec2:DeleteRoute"}, want: []string{
			"cloud-denied|ec2:CreateRoute rtb-1|ec2:CreateRoute", "cloud-denied|ec2:ReplaceRoute rtb-1|ec2:ReplaceRoute",
			"cloud-denied|ec2:DeleteRoute rtb-1|ec2:DeleteRoute"}},
		"overlap": {o: cloud.Options{Pools: []subnet.Pool{{Network: netip.MustParsePrefix("172.31.128.0/17"),
			SubnetLen: 24}}}, want: []string{
			"cloud-overlap|172.31.128.0/17|aws ec2 describe-vpcs --vpc-ids vpc-1"}},
		"another's table": {routes: []cloud.Route{pods("rtb-main", "10.244.2.0/24", "eni-2")}, want: []string{
			`cloud-table-unlisted|rtb-main|"RouteTableID": ["rtb-1", "rtb-main"]`}},
		"a table of others": {routes: []cloud.Route{pods("rtb-main", "10.244.2.0/25", "eni-2"), pods("rtb-main",
			"10.244.3.0/24", "nat-1")}},
		"not the subnet's": {o: cloud.Options{Tables: []string{"rtb-main"}},
			want: []string{"cloud-table-unlisted|rtb-1|aws ec2 describe-route-tables"}},
		"a subnet's table": {table: fake.Table{ID: "rtb-9", Subnets: []string{"subnet-9"}}, want: []string{
			`cloud-table-unlisted|rtb-9|"RouteTableID": ["rtb-1", "rtb-9"]`}},
		"nobody's table": {table: fake.Table{ID: "rtb-9"}},
		"both tables": {o: cloud.Options{Tables: []string{"rtb-main", "rtb-1"}},
			routes: []cloud.Route{pods("rtb-main", "10.244.2.0/24", "eni-2")}},
	} {
		t.Run(name, func(t *testing.T) {
			n := network()
			n.Set(test.routes...)
			if test.table.ID != "" {
				n.AddTable(test.table)
			}
			c := node(t, n, test.o)
			s := self(t, c)
			n.Break(fake.Faults{Denied: test.denied})
			var got []cloud.Trouble
			for range 2 { // what is denied is asked again
				var err error
				if got, err = c.Check(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if len(got) != len(test.want) {
					t.Fatalf("got %+v, want %q", got, test.want)
				}
				if name == "may not read" {
					break
				}
			}
			for i, w := range test.want {
				parts := strings.Split(w, "|")
				if got[i].ID != parts[0] || got[i].Object != parts[1] || !strings.Contains(got[i].Fix, parts[2]) ||
					got[i].Actual == "" {
					t.Errorf("got %+v, want %s", got[i], w)
				}
				plain(t, got[i].Actual)
				plain(t, got[i].Fix)
			}
			nic, _ := n.NIC(func(n fake.NIC) bool { return n.ID == "eni-1" })
			if nic.Forwards == slices.Contains(test.denied, "ec2:ModifyNetworkInterfaceAttribute") {
				t.Errorf("the interface forwards: %t", nic.Forwards)
			}
			if others, _ := n.NIC(func(n fake.NIC) bool { return n.ID == "eni-2" }); others.Forwards {
				t.Error("another's interface was changed")
			}
			if !slices.Equal(n.Routes(), test.routes) {
				t.Errorf("a check has written: %v", n.Routes())
			}
		})
	}
}

// TestPermissionsOnce: what is allowed is asked once.
func TestPermissionsOnce(t *testing.T) {
	n := network()
	c := node(t, n, cloud.Options{})
	s := self(t, c)
	var calls [3]int
	for i := range calls {
		before, _ := n.Calls()
		if troubles, err := c.Check(t.Context(), s); err != nil || len(troubles) > 0 {
			t.Fatal(troubles, err)
		}
		after, _ := n.Calls()
		calls[i] = after - before
	}
	if calls != [3]int{7, 3, 3} { // with one of the metadata each
		t.Errorf("requests of three checks: %v", calls)
	}
}

// TestPermissionsLater: what was not answered is asked again.
func TestPermissionsLater(t *testing.T) {
	clean(t)
	n := network()
	var down atomic.Bool
	down.Store(true)
	h := fake.AWS(n, fake.AWSOptions{Caller: func(*http.Request) (fake.NIC, bool) {
		return n.NIC(func(n fake.NIC) bool { return n.ID == "eni-1" })
	}})
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if down.Load() && bytes.Contains(body, []byte("DryRun=true")) {
			problem(w, http.StatusInternalServerError, "InternalError", "An internal error has occurred")
			return
		}
		h.ServeHTTP(w, r)
	}))
	c := open(t, url, url, cloud.Options{})
	s := self(t, c)
	if troubles, err := c.Check(t.Context(), s); err != nil || len(troubles) > 0 {
		t.Fatal(troubles, err)
	}
	down.Store(false)
	n.Break(fake.Faults{Denied: []string{"ec2:DeleteRoute"}})
	if troubles, err := c.Check(t.Context(), s); err != nil || len(troubles) != 1 || troubles[0].ID != cloud.Denied {
		t.Errorf("%+v, %v; want what is denied", troubles, err)
	}
}
