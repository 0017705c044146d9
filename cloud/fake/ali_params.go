package fake

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// aliCall is an action of Alibaba's API.
type aliCall struct {
	product, version, method string // method of cloud.Cloud
	do                       func(*ali, url.Values) (map[string]any, error)
	needs                    []string
	takes                    map[string]aliType
}

// aliType is how a parameter is written.
type aliType int

const (
	aliText   aliType = iota
	aliNumber         // an integer
	aliFlag           // true or false
)

// aliCommon are the parameters that all actions take.
var aliCommon = map[string]aliType{
	"Action": aliText, "Version": aliText, "Format": aliText, "AccessKeyId": aliText, "SecurityToken": aliText,
	"Signature": aliText, "SignatureMethod": aliText, "SignatureVersion": aliText, "SignatureNonce": aliText,
	"SignatureType": aliText, "Timestamp": aliText, "RegionId": aliText, "OwnerId": aliNumber, "OwnerAccount": aliText,
	"ResourceOwnerId": aliNumber, "ResourceOwnerAccount": aliText,
}

const aliVPC, aliECS = "2016-04-28", "2014-05-26"

// aliCalls are the actions that a front knows. A parameter with N in it is a list.
var aliCalls = map[string]aliCall{
	"DescribeRouteTableList": {"vpc", aliVPC, "Check", (*ali).describeTables, nil, map[string]aliType{
		"VpcId": aliText, "RouteTableId": aliText, "RouteTableType": aliText, "PageNumber": aliNumber, "PageSize": aliNumber}},
	"DescribeRouteEntryList": {"vpc", aliVPC, "List", (*ali).describeRoutes, []string{"RouteTableId"}, map[string]aliType{
		"RouteTableId": aliText, "DestinationCidrBlock": aliText, "NextHopId": aliText, "NextHopType": aliText,
		"RouteEntryId": aliText, "RouteEntryType": aliText, "IpVersion": aliText, "MaxResult": aliNumber, "NextToken": aliText}},
	"DescribeVSwitchAttributes": {"vpc", aliVPC, "Self", (*ali).describeVSwitch, []string{"VSwitchId"}, map[string]aliType{
		"VSwitchId": aliText}},
	"CreateRouteEntry": {"vpc", aliVPC, "Apply", (*ali).createRoute, []string{"RouteTableId", "DestinationCidrBlock"},
		map[string]aliType{"RouteTableId": aliText, "DestinationCidrBlock": aliText, "NextHopId": aliText,
			"NextHopType": aliText, "RouteEntryName": aliText, "Description": aliText, "ClientToken": aliText}},
	"DeleteRouteEntry": {"vpc", aliVPC, "Apply", (*ali).deleteRoute, nil, map[string]aliType{
		"RouteTableId": aliText, "DestinationCidrBlock": aliText, "NextHopId": aliText, "RouteEntryId": aliText,
		"NextHopList.N.NextHopId": aliText, "NextHopList.N.NextHopType": aliText}},
	"DescribeNetworkInterfaces": {"ecs", aliECS, "Check", (*ali).describeNICs, nil, map[string]aliType{
		"InstanceId": aliText, "VpcId": aliText, "VSwitchId": aliText, "NetworkInterfaceId.N": aliText,
		"MaxResults": aliNumber, "NextToken": aliText}},
	"ModifyNetworkInterfaceAttribute": {"ecs", aliECS, "Check", (*ali).modifyNIC, []string{"NetworkInterfaceId"},
		map[string]aliType{"NetworkInterfaceId": aliText, "SourceDestCheck": aliFlag}},
}

// aliAction returns the action that a request names.
func aliAction(form url.Values) (aliCall, error) {
	call, ok := aliCalls[form.Get("Action")]
	if !ok {
		return aliCall{}, aliError{http.StatusNotFound, "InvalidAction.NotFound",
			"Specified api is not found, please check your url and method."}
	}
	if form.Get("Version") != call.version {
		return aliCall{}, aliError{http.StatusBadRequest, "InvalidVersion", "Specified parameter Version is not valid."}
	}
	return call, nil
}

var aliIndex = regexp.MustCompile(`\.[1-9][0-9]*(\.|$)`)

// check refuses parameters that are missing, unknown or of another type. The real API takes no notice of unknown ones.
func (c aliCall) check(form url.Values) error {
	for _, name := range c.needs {
		if form.Get(name) == "" {
			return aliError{http.StatusBadRequest, "MissingParameter",
				fmt.Sprintf("The input parameter %q that is mandatory for processing this request is not supplied.", name)}
		}
	}
	for name, values := range form {
		known := aliIndex.ReplaceAllString(name, ".N$1")
		kind, ok := aliCommon[known]
		if !ok {
			kind, ok = c.takes[known]
		}
		if !ok || len(values) != 1 {
			return aliError{http.StatusBadRequest, "InvalidParameter",
				fmt.Sprintf("The specified parameter %q is not one of this action's, or given twice.", name)}
		}
		if !kind.fits(values[0]) {
			return aliError{http.StatusBadRequest, "InvalidParameter." + name,
				fmt.Sprintf("The specified parameter %q is not valid: %q.", name, values[0])}
		}
	}
	return nil
}

func (t aliType) fits(text string) bool {
	switch t {
	case aliNumber:
		n, err := strconv.Atoi(text)
		return err == nil && n >= 0
	case aliFlag:
		return text == "true" || text == "false"
	}
	return true
}

// aliPage returns the part of a list that a request asks for by a token, and the token of the next.
func aliPage[T any](all []T, form url.Values, size string, usual, limit int) (part []T, next string, err error) {
	most := usual
	if text := form.Get(size); text != "" {
		if most, err = strconv.Atoi(text); err != nil || most < 1 || most > limit {
			return nil, "", aliError{http.StatusBadRequest, "InvalidParameter." + size,
				fmt.Sprintf("The specified %s must be from 1 to %d.", size, limit)}
		}
	}
	from := 0
	if token := form.Get("NextToken"); token != "" {
		text, ok := strings.CutPrefix(token, "from-")
		if from, err = strconv.Atoi(text); !ok || err != nil || from < 0 || from > len(all) {
			return nil, "", aliError{http.StatusBadRequest, "InvalidParameter.NextToken",
				"The specified NextToken is not valid."}
		}
	}
	to := min(from+most, len(all))
	if to < len(all) {
		next = fmt.Sprintf("from-%d", to)
	}
	return all[from:to], next, nil
}

// aliList returns the values of a list parameter, as NextHopList.N.NextHopId.
func aliList(form url.Values, before, after string) (list []string) {
	for i := 1; form.Has(fmt.Sprintf("%s.%d%s", before, i, after)); i++ {
		list = append(list, form.Get(fmt.Sprintf("%s.%d%s", before, i, after)))
	}
	return list
}

// aliWanted reports whether a filter is absent or has the value.
func aliWanted(form url.Values, name string, values ...string) bool {
	return form.Get(name) == "" || slices.Contains(values, form.Get(name))
}
