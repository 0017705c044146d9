package fake

import (
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// awsAction is an action of EC2's that is served.
type awsAction struct {
	name   string
	method string // of cloud.Cloud
	params map[string]string
	need   []string
	run    func(*aws, awsQuery) (awsXML, error)
}

// The kinds of parameters are patterns of their values.
const (
	awsText  = `.*`
	awsBool  = `true|false`
	awsCIDR  = `[0-9a-fA-F.:]+/[0-9]+`
	awsTable = `rtb-[0-9a-z-]+`
	awsENI   = `eni-[0-9a-z-]+`
)

var awsDescribe = map[string]string{"DryRun": awsBool, "MaxResults": `[0-9]+`, "NextToken": awsText,
	"Filter.N.Name": awsText, "Filter.N.Value.N": awsText}

var awsTargets = map[string]string{
	"NetworkInterfaceId": awsENI, "InstanceId": `i-.+`, "GatewayId": `.+-.+`, "NatGatewayId": `nat-.+`,
	"TransitGatewayId":       `tgw-.+`,
	"VpcPeeringConnectionId": `pcx-.+`, "EgressOnlyInternetGatewayId": `eigw-.+`,
}

var awsDestination = map[string]string{"DryRun": awsBool, "RouteTableId": awsTable, "DestinationCidrBlock": awsCIDR,
	"DestinationIpv6CidrBlock": awsCIDR}

var awsActions = []awsAction{
	{"DescribeRouteTables", "List", awsJoin(awsDescribe, map[string]string{"RouteTableId.N": awsTable}), nil,
		(*aws).describeTables},
	{"DescribeNetworkInterfaces", "Check", awsJoin(awsDescribe, map[string]string{"NetworkInterfaceId.N": awsENI}), nil,
		(*aws).describeNICs},
	{"CreateRoute", "Apply", awsJoin(awsDestination, awsTargets), []string{"RouteTableId"}, (*aws).createRoute},
	{"ReplaceRoute", "Apply", awsJoin(awsDestination, awsTargets), []string{"RouteTableId"}, (*aws).replaceRoute},
	{"DeleteRoute", "Apply", awsDestination, []string{"RouteTableId"}, (*aws).deleteRoute},
	{"ModifyNetworkInterfaceAttribute", "Check", map[string]string{"DryRun": awsBool, "NetworkInterfaceId": awsENI,
		"SourceDestCheck.Value": awsBool}, []string{"NetworkInterfaceId"}, (*aws).modifyNIC},
}

func awsJoin(all ...map[string]string) map[string]string {
	sum := map[string]string{}
	for _, m := range all {
		for k, v := range m {
			sum[k] = v
		}
	}
	return sum
}

// awsQuery is a request that has been judged.
type awsQuery struct {
	awsAction
	form url.Values
}

func (q awsQuery) get(name string) string { return q.form.Get(name) }

// list returns the values of name.1, name.2 and so on.
func (q awsQuery) list(name string) (values []string) {
	for i := 1; q.form.Has(name + "." + strconv.Itoa(i)); i++ {
		values = append(values, q.get(name+"."+strconv.Itoa(i)))
	}
	return values
}

var awsIndex = regexp.MustCompile(`\.[0-9]+`)

// judge checks the action and all parameters.
func (a *aws) judge(form url.Values) (awsQuery, error) {
	i := slices.IndexFunc(awsActions, func(x awsAction) bool { return x.name == form.Get("Action") })
	switch {
	case !form.Has("Action"):
		return awsQuery{}, awsRefuse("MissingAction", "The request is missing an action or a required parameter.")
	case i < 0:
		return awsQuery{}, awsRefuse("InvalidAction", "The action %s is not valid for this web service.", form.Get("Action"))
	case form.Get("Version") != "2016-11-15":
		return awsQuery{}, awsRefuse("NoSuchVersion", "The requested version (%s) of service AmazonEC2 does not exist.",
			form.Get("Version"))
	}
	q := awsQuery{awsActions[i], form}
	for name, values := range form {
		if name == "Action" || name == "Version" {
			continue
		}
		pattern, known := q.params[awsIndex.ReplaceAllString(name, ".N")]
		if !known {
			return q, awsRefuse("UnknownParameter", "The parameter %s is not recognized", name)
		}
		if len(values) != 1 {
			return q, awsRefuse("InvalidParameterCombination", "The parameter %s is there more than once.", name)
		}
		if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(values[0]) {
			return q, awsRefuse(awsMalformed(pattern), "Value (%s) for parameter %s is invalid.", values[0], name)
		}
	}
	for _, name := range q.need {
		if !form.Has(name) {
			return q, awsRefuse("MissingParameter", "The request must contain the parameter %s", name)
		}
	}
	return q, nil
}

// awsMalformed returns the code of a value that does not have the form that it should have.
func awsMalformed(pattern string) string {
	switch pattern {
	case awsTable:
		return "InvalidRouteTableId.Malformed"
	case awsENI:
		return "InvalidNetworkInterfaceId.Malformed"
	}
	return "InvalidParameterValue"
}

// filtered reports whether something has the values that the filters ask for. A filter that values do not have is
// refused.
func (q awsQuery) filtered(values map[string][]string) (bool, error) {
	for i := 1; ; i++ {
		prefix := "Filter." + strconv.Itoa(i) + "."
		name := q.get(prefix + "Name")
		if name == "" {
			return true, nil
		}
		has, known := values[name]
		if !known {
			return false, awsRefuse("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		if !slices.ContainsFunc(q.list(prefix+"Value"), func(pattern string) bool {
			return slices.ContainsFunc(has, func(v string) bool { return awsMatch(pattern, v) })
		}) {
			return false, nil
		}
	}
}

// awsMatch reports whether a value is what a filter asks for, which may have the wildcards * and ?.
func awsMatch(pattern, value string) bool {
	slashes := strings.NewReplacer("/", "|", "[", `\[`, `\`, `\\`)
	ok, err := path.Match(slashes.Replace(pattern), strings.ReplaceAll(value, "/", "|"))
	return ok && err == nil
}

// page returns which of a number of items an answer has, and the token for the rest.
func (a *aws) page(q awsQuery, items, most int) (from, to int, token string, err error) {
	size := items
	if text := q.get("MaxResults"); text != "" {
		if size, _ = strconv.Atoi(text); size < 5 || size > most {
			return 0, 0, "", awsRefuse("InvalidParameterValue",
				"Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and %d.", text, most)
		}
	}
	if a.PageSize > 0 {
		size = min(size, a.PageSize)
	}
	if text, ok := strings.CutPrefix(q.get("NextToken"), "after-"); ok {
		from, err = strconv.Atoi(text)
	} else if q.form.Has("NextToken") {
		err = strconv.ErrSyntax
	}
	if err != nil || from < 0 || from > items {
		return 0, 0, "", awsRefuse("InvalidNextToken", "The token is not valid.")
	}
	to = min(from+size, items)
	if to < items {
		token = "after-" + strconv.Itoa(to)
	}
	return from, to, token, nil
}

// destination returns where a route leads to.
func (q awsQuery) destination() (netip.Prefix, error) {
	four, six := q.get("DestinationCidrBlock"), q.get("DestinationIpv6CidrBlock")
	switch {
	case four == "" && six == "":
		return netip.Prefix{}, awsRefuse("MissingParameter",
			"The request must contain the parameter destinationCidrBlock or destinationIpv6CidrBlock")
	case four != "" && six != "":
		return netip.Prefix{}, awsRefuse("InvalidParameterCombination",
			"destinationCidrBlock and destinationIpv6CidrBlock are exclusive")
	}
	p, err := netip.ParsePrefix(four + six)
	if err != nil || p.Addr().Is4() != (four != "") {
		return p, awsRefuse("InvalidParameterValue",
			"Value (%s) for parameter destinationCidrBlock is invalid. This is not a valid CIDR block.", four+six)
	}
	return p.Masked(), nil
}
