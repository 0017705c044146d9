package fake

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestAliRefuses: the front takes nothing but what is documented, and says what is wrong as the API does.
func TestAliRefuses(t *testing.T) {
	n := &Network{ID: "vpc-1"}
	n.AddTable(Table{ID: "vtb-1", Main: true})
	n.AddNIC(NIC{ID: "i-1", MAC: "00:16:3e:00:00:01", Subnet: "vsw-1", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.1")}})
	server := httptest.NewServer(Ali(n, AliOptions{Keys: map[string]string{"id": "secret"},
		VSwitches: map[string]netip.Prefix{"vsw-1": netip.MustParsePrefix("192.168.1.0/24")}}))
	defer server.Close()
	right := map[string]string{"Action": "CreateRouteEntry", "Version": "2016-04-28", "RouteTableId": "vtb-1",
		"DestinationCidrBlock": "10.244.1.0/24", "NextHopType": "Instance", "NextHopId": "i-1"}
	list := map[string]string{"Action": "DescribeRouteEntryList", "RouteTableId": "vtb-1"}
	for name, test := range map[string]struct {
		change map[string]string // of the right request; - takes a parameter out
		code   string
		status int
	}{
		"unknown action":      {map[string]string{"Action": "CreateRouteEntri"}, "InvalidAction.NotFound", 404},
		"another version":     {map[string]string{"Version": "2014-05-26"}, "InvalidVersion", 400},
		"missing":             {map[string]string{"RouteTableId": "-"}, "MissingParameter", 400},
		"misspelt":            {map[string]string{"NextHopID": "i-1"}, "InvalidParameter", 400},
		"another region":      {map[string]string{"RegionId": "cn-beijing"}, "InvalidRegionId.NotFound", 404},
		"no number":           {map[string]string{"OwnerId": "x"}, "InvalidParameter.OwnerId", 400},
		"wrong signature":     {map[string]string{"Signature": "x"}, "SignatureDoesNotMatch", 400},
		"unknown key":         {map[string]string{"AccessKeyId": "x"}, "InvalidAccessKeyId.NotFound", 404},
		"no role":             {map[string]string{"SecurityToken": "x"}, "InvalidAccessKeyId.NotFound", 404},
		"old":                 {map[string]string{"Timestamp": "2020-01-01T00:00:00Z"}, "InvalidTimeStamp.Expired", 400},
		"no time":             {map[string]string{"Timestamp": "now"}, "InvalidTimeStamp.Format", 400},
		"another signature":   {map[string]string{"SignatureMethod": "HMAC-MD5"}, "InvalidParameter.SignatureMethod", 400},
		"no such table":       {map[string]string{"RouteTableId": "vtb-2"}, "InvalidRouteTableId.NotFound", 404},
		"no such instance":    {map[string]string{"NextHopId": "i-2"}, "InvalidNextHopId.NotFound", 404},
		"no next hop":         {map[string]string{"NextHopType": "-"}, "InvalidNexthopTypeAndList.BothNull", 400},
		"not its type":        {map[string]string{"NextHopType": "NetworkInterface"}, "InvalidNextHopType", 400},
		"no block":            {map[string]string{"DestinationCidrBlock": "10.244.1.1/24"}, "InvalidCidrBlock.Malformed", 400},
		"in a vSwitch":        {map[string]string{"DestinationCidrBlock": "192.168.1.0/25"}, "InvalidCidrBlock", 400},
		"in the services'":    {map[string]string{"DestinationCidrBlock": "100.64.0.0/16"}, "InvalidCidrBlock", 400},
		"a page too large":    {map[string]string{"Action": list["Action"], "MaxResult": "501"}, "InvalidParameter.MaxResult", 400},
		"another page":        {map[string]string{"Action": list["Action"], "NextToken": "x"}, "InvalidParameter.NextToken", 400},
		"delete without hop":  {map[string]string{"Action": "DeleteRouteEntry", "NextHopType": "-", "NextHopId": "-"}, "InvalidNextHop", 400},
		"delete what is gone": {map[string]string{"Action": "DeleteRouteEntry", "NextHopType": "-"}, "InvalidRouteEntry.NotFound", 400},
	} {
		t.Run(name, func(t *testing.T) {
			form := maps.Clone(right)
			if test.change["Action"] == list["Action"] {
				form = map[string]string{"Version": right["Version"], "RouteTableId": "vtb-1"}
			}
			maps.Copy(form, test.change)
			status, answer := ask(t, server.URL, form)
			if answer["Code"] != test.code || status != test.status {
				t.Errorf("HTTP status %d, %v; want %d, %s", status, answer, test.status, test.code)
			}
		})
	}
	if status, answer := ask(t, server.URL, right); status != http.StatusOK || len(n.Routes()) != 1 {
		t.Errorf("the right request: HTTP status %d, %v", status, answer)
	}
	again := map[string]string{"SignatureNonce": "one"}
	maps.Copy(again, right)
	ask(t, server.URL, again)
	if _, answer := ask(t, server.URL, again); answer["Code"] != "SignatureNonceUsed" {
		t.Errorf("the same request again: %v", answer)
	}
}

// ask signs and sends a request. It returns the answer.
func ask(t *testing.T, to string, parameters map[string]string) (int, map[string]any) {
	t.Helper()
	form := url.Values{"Format": {"JSON"}, "AccessKeyId": {"id"}, "SignatureMethod": {"HMAC-SHA1"}, "SignatureVersion": {"1.0"},
		"SignatureNonce": {strings.ReplaceAll(time.Now().String(), " ", "")}, "Timestamp": {time.Now().UTC().Format("2006-01-02T15:04:05Z")}}
	for name, value := range parameters {
		form.Set(name, value)
		if value == "-" {
			form.Del(name)
		}
	}
	if !form.Has("Signature") {
		form.Set("Signature", aliSign(aliStringToSign("GET", form), "secret"))
	}
	response, err := http.Get(to + "/?" + form.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer
}
