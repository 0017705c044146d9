package ali_test

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/requests"
	"github.com/aliyun/alibaba-cloud-sdk-go/services/ecs"
	"github.com/aliyun/alibaba-cloud-sdk-go/services/vpc"

	"github.com/twill-net/twill/cloud"
)

// ofAll are the parameters of all RPC requests. The SDK's signer, not its request types, adds them.
var ofAll = map[string]bool{"Action": true, "Version": true, "Format": true, "AccessKeyId": true, "Signature": true,
	"SignatureMethod": true, "SignatureVersion": true, "SignatureNonce": true, "SignatureType": true, "Timestamp": true, "RegionId": true}

// TestParameters: every parameter that Twill sends is one of the SDK's request type of that action, and has its type.
func TestParameters(t *testing.T) {
	types := map[string]requests.AcsRequest{
		"DescribeRouteTableList":          vpc.CreateDescribeRouteTableListRequest(),
		"DescribeRouteEntryList":          vpc.CreateDescribeRouteEntryListRequest(),
		"DescribeVSwitchAttributes":       vpc.CreateDescribeVSwitchAttributesRequest(),
		"CreateRouteEntry":                vpc.CreateCreateRouteEntryRequest(),
		"DeleteRouteEntry":                vpc.CreateDeleteRouteEntryRequest(),
		"DescribeNetworkInterfaces":       ecs.CreateDescribeNetworkInterfacesRequest(),
		"ModifyNetworkInterfaceAttribute": ecs.CreateModifyNetworkInterfaceAttributeRequest(),
	}
	judged := 0
	for action, all := range newFront(t).requests(t) {
		sdk := types[action]
		if sdk == nil {
			t.Errorf("the SDK has no action %s", action)
			continue
		}
		for _, sent := range all {
			if sent.Get("Version") != sdk.GetVersion() {
				t.Errorf("%s: version %s, want %s", action, sent.Get("Version"), sdk.GetVersion())
			}
			for name, values := range sent {
				if ofAll[name] {
					continue
				}
				judged++
				if wrong := misfit(reflect.TypeOf(sdk).Elem(), name, values[0]); wrong != "" {
					t.Errorf("%s: parameter %s = %q: %s", action, name, values[0], wrong)
				}
			}
		}
	}
	t.Logf("%d parameters judged", judged)
}

var index = regexp.MustCompile(`^(\w+)\.[1-9]\d*(?:\.(\w+))?$`)

// misfit returns why a parameter is none of a request type's, empty if it is one.
func misfit(request reflect.Type, name, value string) string {
	base, member, list := name, "", false
	if m := index.FindStringSubmatch(name); m != nil {
		base, member, list = m[1], m[2], true
	}
	for i := range request.NumField() {
		field := request.Field(i)
		if field.Tag.Get("name") != base {
			continue
		}
		kind := field.Type
		switch {
		case field.Tag.Get("position") != "Query":
			return "it belongs into the " + field.Tag.Get("position")
		case list != (field.Tag.Get("type") == "Repeated"):
			return "it is a list there, or is none"
		case list:
			kind = kind.Elem().Elem()
		}
		if member != "" {
			if kind.Kind() != reflect.Struct {
				return "its elements have no members"
			}
			return misfitMember(kind, member)
		}
		return unlike(kind, value)
	}
	return "there is no such parameter"
}

func misfitMember(kind reflect.Type, member string) string {
	for i := range kind.NumField() {
		if kind.Field(i).Tag.Get("name") == member {
			return ""
		}
	}
	return "its elements have no member " + member
}

// unlike returns why a value is not of a type.
func unlike(kind reflect.Type, value string) string {
	switch kind {
	case reflect.TypeFor[requests.Integer]():
		if _, err := strconv.Atoi(value); err != nil {
			return "it is an integer there"
		}
	case reflect.TypeFor[requests.Boolean]():
		if value != "true" && value != "false" {
			return "it is true or false there"
		}
	case reflect.TypeFor[string]():
	default:
		return "it is of type " + kind.String() + " there"
	}
	return ""
}

// TestMisfit: the judge can find fault.
func TestMisfit(t *testing.T) {
	request := reflect.TypeFor[vpc.DeleteRouteEntryRequest]()
	list := reflect.TypeFor[vpc.DescribeRouteEntryListRequest]()
	for _, wrong := range []string{misfit(request, "NextHopID", "x"), misfit(request, "NextHopList.1.Id", "x"), misfit(request, "NextHopId.1", "x"),
		misfit(list, "MaxResults", "1"), misfit(list, "MaxResult", "many"), misfit(request, "NextHopList", "x")} {
		if wrong == "" {
			t.Error("no fault found")
		}
	}
}

// TestSDK: the SDK's own client makes, lists and deletes routes at the front, and Twill's sees the same.
func TestSDK(t *testing.T) {
	f := newFront(t)
	client, err := vpc.NewClientWithAccessKey(region, keyID, keySecret)
	if err != nil {
		t.Fatal(err)
	}
	client.Domain = strings.TrimPrefix(f.url, "http://")
	client.GetConfig().WithScheme("HTTP").WithAutoRetry(false)
	create := vpc.CreateCreateRouteEntryRequest()
	create.RouteTableId, create.DestinationCidrBlock, create.NextHopType, create.NextHopId = "vtb-main", "10.244.1.0/24", "Instance", "i-1"
	if answer, err := client.CreateRouteEntry(create); err != nil || answer.RouteEntryId == "" || answer.RequestId == "" {
		t.Fatalf("%+v, %v", answer, err)
	}
	list := vpc.CreateDescribeRouteEntryListRequest()
	list.RouteTableId, list.RouteEntryType = "vtb-main", "Custom"
	answer, err := client.DescribeRouteEntryList(list)
	if err != nil || len(answer.RouteEntrys.RouteEntry) != 1 {
		t.Fatalf("%+v, %v", answer, err)
	}
	e := answer.RouteEntrys.RouteEntry[0]
	if e.DestinationCidrBlock != "10.244.1.0/24" || e.Status != "Available" || len(e.NextHops.NextHop) != 1 ||
		e.NextHops.NextHop[0].NextHopId != "i-1" || e.NextHops.NextHop[0].Enabled != 1 {
		t.Errorf("%+v", e)
	}
	tables := vpc.CreateDescribeRouteTableListRequest()
	tables.VpcId = "vpc-1"
	if answer, err := client.DescribeRouteTableList(tables); err != nil || len(answer.RouterTableList.RouterTableListType) != 1 ||
		answer.RouterTableList.RouterTableListType[0].VSwitchIds.VSwitchId[0] != "vsw-1" {
		t.Errorf("%+v, %v", answer, err)
	}
	vswitch := vpc.CreateDescribeVSwitchAttributesRequest()
	vswitch.VSwitchId = "vsw-1"
	if answer, err := client.DescribeVSwitchAttributes(vswitch); err != nil || answer.RouteTable.RouteTableId != "vtb-main" {
		t.Errorf("%+v, %v", answer, err)
	}
	if err := f.node.Apply(t.Context(), f.self, cloud.Change{Op: cloud.Delete, Route: route("10.244.1.0/24", "i-1")}); err != nil {
		t.Errorf("delete what the SDK made: %v", err)
	}
}

// TestSDKInterfaces: the SDK's client of ECS reads and sets the check of network interfaces.
func TestSDKInterfaces(t *testing.T) {
	f := newFront(t)
	client, err := ecs.NewClientWithAccessKey(region, keyID, keySecret)
	if err != nil {
		t.Fatal(err)
	}
	client.Domain = strings.TrimPrefix(f.url, "http://")
	client.GetConfig().WithScheme("HTTP").WithAutoRetry(false)
	checks := func() bool {
		t.Helper()
		list := ecs.CreateDescribeNetworkInterfacesRequest()
		list.InstanceId = "i-1"
		answer, err := client.DescribeNetworkInterfaces(list)
		if err != nil || len(answer.NetworkInterfaceSets.NetworkInterfaceSet) != 1 {
			t.Fatalf("%+v, %v", answer, err)
		}
		return answer.NetworkInterfaceSets.NetworkInterfaceSet[0].SourceDestCheck
	}
	if !checks() {
		t.Error("the check is off from the start")
	}
	if _, err := f.node.Check(t.Context(), f.self); err != nil || checks() {
		t.Errorf("after Check: the check is on: %t, %v", checks(), err)
	}
}
