package aws

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/aws"
)

// frontNetwork returns a VPC with three machines, two of them in a subnet with a table of its own.
func frontNetwork() *fake.Network {
	n := &fake.Network{ID: "vpc-1"}
	for i := range 3 {
		n.AddNIC(fake.NIC{ID: fmt.Sprint("eni-", i+1), Instance: fmt.Sprint("i-", i+1), Subnet: fmt.Sprint("subnet-", 1+i/2),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 31, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprint("2001:db8::",
				i+1))}})
	}
	n.AddTable(fake.Table{ID: "rtb-main", Main: true})
	n.AddTable(fake.Table{ID: "rtb-1", Subnets: []string{"subnet-1"}})
	return n
}

// TestCLI: the AWS CLI understands the front: what it writes is there, and it shows what is there. The instance's role
// gives it its credentials, by the metadata.
func TestCLI(t *testing.T) {
	path := program(t, "aws", "--version")
	clean(t)
	n := frontNetwork()
	j := &judge{model: loadModel(t), seen: map[string]int{}, wrong: map[string]bool{}, server: fake.AWS(n, fake.AWSOptions{
		CIDRs:  []netip.Prefix{netip.MustParsePrefix("172.31.0.0/16")},
		Caller: func(*http.Request) (fake.NIC, bool) { return n.NICs()[0], true }})}
	s := httptest.NewServer(j)
	t.Cleanup(s.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_DEFAULT_REGION", region)
	run := func(args string) (string, error) {
		out, err := exec.CommandContext(t.Context(), path, append([]string{"ec2", "--output", "json"},
			strings.Fields(args)...)...).CombinedOutput()
		return string(out), err
	}
	for _, step := range []struct{ args, want, fails string }{
		{args: "create-route --route-table-id rtb-1 --destination-cidr-block 10.244.1.0/24 --network-interface-id eni-1",
			want: "rtb-1 10.244.1.0/24 via eni-1"},
		{args: "create-route --route-table-id rtb-1 --destination-cidr-block 10.244.1.0/24 --network-interface-id eni-2",
			want: "rtb-1 10.244.1.0/24 via eni-1", fails: "(RouteAlreadyExists)"},
		{args: "create-route --route-table-id rtb-1 --destination-ipv6-cidr-block fd00:244:0:1::/64 --network-interface-id eni-1 --dry-run",
			want: "rtb-1 10.244.1.0/24 via eni-1", fails: "(DryRunOperation)"},
		{args: "create-route --route-table-id rtb-1 --destination-ipv6-cidr-block fd00:244:0:1::/64 --network-interface-id eni-1",
			want: "rtb-1 10.244.1.0/24 via eni-1, rtb-1 fd00:244:0:1::/64 via eni-1"},
		{args: "replace-route --route-table-id rtb-1 --destination-cidr-block 10.244.1.0/24 --network-interface-id eni-2",
			want: "rtb-1 10.244.1.0/24 via eni-2, rtb-1 fd00:244:0:1::/64 via eni-1"},
		{args: "delete-route --route-table-id rtb-1 --destination-ipv6-cidr-block fd00:244:0:1::/64",
			want: "rtb-1 10.244.1.0/24 via eni-2"},
		{args: "modify-network-interface-attribute --network-interface-id eni-1 --no-source-dest-check",
			want: "rtb-1 10.244.1.0/24 via eni-2"},
	} {
		out, err := run(step.args)
		if (err != nil) != (step.fails != "") || !strings.Contains(out, step.fails) {
			t.Errorf("aws ec2 %s: %v\n%s", step.args, err, out)
		}
		var texts []string
		for _, r := range n.Routes() {
			texts = append(texts, r.String())
		}
		if got := strings.Join(texts, ", "); got != step.want {
			t.Errorf("after %s: %s, want %s", step.args, got, step.want)
		}
	}
	if !n.NICs()[0].Forwards || n.NICs()[1].Forwards {
		t.Errorf("source/destination checks: %+v", n.NICs())
	}
	n.Set(append(n.Routes(), cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("0.0.0.0/0"), Target: "igw-1"})...)
	n.RemoveNIC("eni-2")
	out, err := run("describe-route-tables --filters Name=vpc-id,Values=vpc-1 Name=association.subnet-id,Values=subnet-*")
	var shown struct {
		RouteTables []struct {
			RouteTableId, VpcId string
			Associations        []struct {
				SubnetId string
				Main     bool
			}
			Routes []struct{ DestinationCidrBlock, NetworkInterfaceId, GatewayId, State, Origin string }
		}
	}
	if err != nil || json.Unmarshal([]byte(out), &shown) != nil {
		t.Fatal(err, out)
	}
	if got, want := fmt.Sprintf("%+v", shown.RouteTables),
		"[{RouteTableId:rtb-1 VpcId:vpc-1 Associations:[{SubnetId:subnet-1 Main:false}] Routes:["+
			"{DestinationCidrBlock:172.31.0.0/16 NetworkInterfaceId: GatewayId:local State:active Origin:CreateRouteTable} "+
			"{DestinationCidrBlock:10.244.1.0/24 NetworkInterfaceId:eni-2 GatewayId: State:blackhole Origin:CreateRoute} "+
			"{DestinationCidrBlock:0.0.0.0/0 NetworkInterfaceId: GatewayId:igw-1 State:active Origin:CreateRoute}]}]"; got != want {
		t.Errorf("shown is %s, want %s", got, want)
	}
	j.report(t)
}

// TestRemedies: the CLI knows the commands that the doctor and the page recommend.
func TestRemedies(t *testing.T) {
	path := program(t, "aws", "--version")
	clean(t)
	n := frontNetwork()
	s := httptest.NewServer(fake.AWS(n, fake.AWSOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Caller: func(*http.Request) (fake.NIC, bool) { return n.NICs()[0], true }}))
	t.Cleanup(s.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_DEFAULT_REGION", region)
	c, err := aws.New(cloud.Options{Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	self, err := c.Self(t.Context(), n.NICs()[0].Addrs)
	if err != nil {
		t.Fatal(err)
	}
	n.AddTable(fake.Table{ID: "rtb-9", Subnets: []string{"subnet-9"}})
	n.Break(fake.Faults{Denied: []string{"ec2:ModifyNetworkInterfaceAttribute"}})
	troubles, err := c.Check(t.Context(), self)
	if err != nil || len(troubles) != 4 {
		t.Fatal(troubles, err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all := string(text)
	for _, trouble := range troubles {
		all += "\n" + trouble.Fix
	}
	commands := regexp.MustCompile("aws (?:ec2|iam) [^`\n]+").FindAllString(all, -1)
	if len(commands) < 8 {
		t.Errorf("%d commands found, there are more: %q", len(commands), commands)
	}
	for _, command := range commands {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", path+strings.TrimPrefix(command, "aws")).CombinedOutput()
		theirs := strings.Contains(string(out), " when calling the ") // of the server, which plays little
		if err != nil && !theirs {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}
