package fake

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
)

func vpc() *aws {
	n := &Network{ID: "vpc-1"}
	for i, id := range []string{"eni-1", "eni-2"} {
		n.AddNIC(NIC{ID: id, Instance: "i-1", Subnet: "subnet-1", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 31, 0,
			byte(i + 1)})}})
	}
	n.AddNIC(NIC{ID: "eni-3", Instance: "i-3", Subnet: "subnet-1", Addrs: []netip.Addr{netip.MustParseAddr("172.31.0.3")}})
	n.AddTable(Table{ID: "rtb-1", Main: true})
	n.AddTable(Table{ID: "rtb-2", Subnets: []string{"subnet-1"}})
	h, _ := AWS(n, AWSOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("172.31.0.0/16")}}).(*aws)
	return h
}

// TestAWSJudges: a request that EC2 would not take is an error in its words. Errors are judged before anything is done.
func TestAWSJudges(t *testing.T) {
	for query, code := range map[string]string{
		"":                                      "MissingAction",
		"Action=DescribeRoutes":                 "InvalidAction",
		"Action=DeleteRoute&Version=2014-10-01": "NoSuchVersion",
		"Action=DeleteRoute&RouteTableID=rtb-1&DestinationCidrBlock=10.244.1.0/24":                                          "UnknownParameter",
		"Action=DeleteRoute&RouteTableId=rtb-1&NetworkInterfaceId=eni-1":                                                    "UnknownParameter",
		"Action=DeleteRoute&DestinationCidrBlock=10.244.1.0/24":                                                             "MissingParameter",
		"Action=DeleteRoute&RouteTableId=rtb-1":                                                                             "MissingParameter",
		"Action=DeleteRoute&RouteTableId=table&DestinationCidrBlock=10.244.1.0/24":                                          "InvalidRouteTableId.Malformed",
		"Action=DeleteRoute&RouteTableId=rtb-9&DestinationCidrBlock=10.244.1.0/24":                                          "InvalidRouteTableID.NotFound",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24":                                          "InvalidRoute.NotFound",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&DryRun=yes":                               "InvalidParameterValue",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&DryRun=true":                              "DryRunOperation",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/33":                                          "InvalidParameterValue",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationCidrBlock=fd00::/64":                                              "InvalidParameterValue",
		"Action=DeleteRoute&RouteTableId=rtb-1&DestinationIpv6CidrBlock=10.244.1.0/24":                                      "InvalidParameterValue",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24":                                          "MissingParameter",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&NetworkInterfaceId=i-1":                   "InvalidNetworkInterfaceId.Malformed",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&NetworkInterfaceId=eni-9":                 "InvalidNetworkInterfaceID.NotFound",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=172.31.9.0/24&NetworkInterfaceId=eni-1":                 "InvalidParameterValue",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&NetworkInterfaceId=eni-1&GatewayId=igw-1": "InvalidParameterCombination",
		"Action=CreateRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&NetworkInterfaceId=eni-1":                 "",
		"Action=ReplaceRoute&RouteTableId=rtb-1&DestinationCidrBlock=10.244.1.0/24&NetworkInterfaceId=eni-1":                "InvalidParameterValue",
		"Action=ModifyNetworkInterfaceAttribute&NetworkInterfaceId=eni-1":                                                   "MissingParameter",
		"Action=ModifyNetworkInterfaceAttribute&NetworkInterfaceId=eni-1&SourceDestCheck=false":                             "UnknownParameter",
		"Action=DescribeRouteTables&RouteTableId.1=rtb-9":                                                                   "InvalidRouteTableID.NotFound",
		"Action=DescribeRouteTables&MaxResults=4":                                                                           "InvalidParameterValue",
		"Action=DescribeRouteTables&NextToken=x":                                                                            "InvalidNextToken",
		"Action=DescribeRouteTables&Filter.1.Name=subnet&Filter.1.Value.1=x":                                                "InvalidParameterValue",
		"Action=DescribeRouteTables&Filter.1.Name=vpc-id&Filter.1.Value.1=vpc-*":                                            "",
		"Action=DescribeNetworkInterfaces&NetworkInterfaceId.1=eni-9":                                                       "InvalidNetworkInterfaceID.NotFound",
	} {
		a := vpc()
		form, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if form.Has("Action") && !form.Has("Version") {
			form.Set("Version", "2016-11-15")
		}
		q, err := a.judge(form)
		if err == nil {
			err = a.permit(q)
		}
		if err == nil {
			_, err = q.run(a, q)
		}
		var problem *awsProblem
		if got := ""; errors.As(err, &problem) || err == nil {
			if problem != nil {
				got = problem.code
			}
			if got != code {
				t.Errorf("%s: %v, want %s", query, err, code)
			}
		} else {
			t.Errorf("%s: %v is none of EC2's", query, err)
		}
		if wrote := len(a.Routes()) > 0; wrote != (code == "" && strings.HasPrefix(query, "Action=Create")) {
			t.Errorf("%s: routes %v", query, a.Routes())
		}
	}
}

// TestAWSUnsigned: nobody is served without a signature.
func TestAWSUnsigned(t *testing.T) {
	answer := httptest.NewRecorder()
	vpc().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/",
		strings.NewReader("Action=DescribeRouteTables&Version=2016-11-15")))
	if answer.Code != http.StatusUnauthorized || !strings.Contains(answer.Body.String(), "<Code>AuthFailure</Code>") {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}

// TestAWSMetadata: an instance sees its own interfaces, with a session token, and nobody else sees anything.
func TestAWSMetadata(t *testing.T) {
	a := vpc()
	ask := func(method, path, from string, header ...string) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		r.RemoteAddr = from + ":40000"
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer := httptest.NewRecorder()
		a.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	_, token := ask(http.MethodPut, "/latest/api/token", "172.31.0.1", awsTTLHeader, "60")
	for _, test := range []struct {
		method, path, from string
		header             []string
		status             int
		text               string
	}{
		{http.MethodPut, "/latest/api/token", "172.31.0.1", nil, 400, ""},
		{http.MethodPut, "/latest/api/token", "172.31.0.1", []string{awsTTLHeader, "21601"}, 400, ""},
		{http.MethodPut, "/latest/api/token", "172.31.0.1", []string{awsTTLHeader, "60", "X-Forwarded-For", "10.0.0.1"},
			403, ""},
		{http.MethodGet, "/latest/api/token", "172.31.0.1", nil, 405, ""},
		{http.MethodPut, "/latest/api/token", "172.31.0.9", []string{awsTTLHeader, "60"}, 404, ""},
		{http.MethodGet, "/latest/meta-data/instance-id", "172.31.0.1", nil, 401, ""},
		{http.MethodGet, "/latest/meta-data/instance-id", "172.31.0.3", []string{awsTokenHeader, token}, 401, ""},
		{http.MethodGet, "/latest/meta-data/instance-id", "172.31.0.1", []string{awsTokenHeader, token}, 200, "i-1"},
		{http.MethodGet, "/latest/meta-data/no", "172.31.0.1", []string{awsTokenHeader, token}, 404, ""},
		{http.MethodGet, "/latest/meta-data/placement/region", "172.31.0.1", []string{awsTokenHeader, token}, 200,
			"eu-central-1"},
		{http.MethodGet, "/latest/meta-data/network/interfaces/macs/", "172.31.0.1", []string{awsTokenHeader, token}, 200,
			NIC{ID: "eni-1"}.mac() + "/\n" + NIC{ID: "eni-2"}.mac() + "/"},
		{http.MethodGet, "/latest/meta-data/network/interfaces/macs/" + NIC{ID: "eni-2"}.mac() + "/local-ipv4s", "172.31.0.1",
			[]string{awsTokenHeader, token}, 200, "172.31.0.2"},
		{http.MethodGet, "/latest/meta-data/network/interfaces/macs/" + NIC{ID: "eni-2"}.mac() + "/ipv6s", "172.31.0.1",
			[]string{awsTokenHeader, token}, 404, ""},
		{http.MethodGet, "/latest/meta-data/network/interfaces/macs/" + NIC{ID: "eni-3"}.mac() + "/interface-id",
			"172.31.0.1",
			[]string{awsTokenHeader, token}, 404, ""},
	} {
		status, text := ask(test.method, test.path, test.from, test.header...)
		if status != test.status || test.text != "" && text != test.text {
			t.Errorf("%s %s from %s with %q: %d %q, want %d %q", test.method, test.path, test.from, test.header, status, text,
				test.status, test.text)
		}
	}
	a.Break(Faults{Away: true, Fail: func(string) error { return cloud.ErrThrottled }})
	if status, _ := ask(http.MethodGet, "/latest/meta-data/network/interfaces/macs/", "172.31.0.1", awsTokenHeader,
		token); status != 503 {
		t.Errorf("a fault of Self is %d", status)
	}
}
