package fake

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/cloud"
)

func (a *aws) describeTables(q awsQuery) (awsXML, error) {
	wanted := q.list("RouteTableId")
	tables := a.Tables()
	for _, id := range wanted {
		if !slices.ContainsFunc(tables, func(t Table) bool { return t.ID == id }) {
			return "", awsNoTable(id)
		}
	}
	visible := a.Visible()
	var shown []Table
	for _, t := range tables {
		ok, err := q.filtered(a.tableValues(t, visible))
		if err != nil {
			return "", err
		}
		if ok && (len(wanted) == 0 || slices.Contains(wanted, t.ID)) {
			shown = append(shown, t)
		}
	}
	from, to, token, err := a.page(q, len(shown), 100)
	if err != nil {
		return "", err
	}
	x := awsXML("").element("routeTableSet", func(x awsXML) awsXML {
		for _, t := range shown[from:to] {
			x = x.element("item", func(x awsXML) awsXML { return a.showTable(x, t, visible) })
		}
		return x
	})
	if token != "" {
		x = x.text("nextToken", token)
	}
	return x, nil
}

// tableValues are what tables can be filtered by.
func (a *aws) tableValues(t Table, routes []cloud.Route) map[string][]string {
	v := map[string][]string{"route-table-id": {t.ID}, "vpc-id": {a.ID}, "owner-id": {awsOwner},
		"association.main":      {strconv.FormatBool(t.Main)},
		"association.subnet-id": t.Subnets, "association.route-table-id": nil, "route.destination-cidr-block": nil,
		"route.destination-ipv6-cidr-block": nil, "route.gateway-id": {"local"}, "route.instance-id": nil, "route.state": nil}
	if t.Main || len(t.Subnets) > 0 {
		v["association.route-table-id"] = []string{t.ID}
	}
	for _, r := range routes {
		if r.Table == t.ID {
			dst := "route.destination-cidr-block"
			if r.Dst.Addr().Is6() {
				dst = "route.destination-ipv6-cidr-block"
			}
			v[dst] = append(v[dst], r.Dst.String())
			v["route.state"] = append(v["route.state"], r.State.String())
		}
	}
	return v
}

func (a *aws) showTable(x awsXML, t Table, routes []cloud.Route) awsXML {
	x = x.text("routeTableId", t.ID).text("vpcId", a.ID).text("ownerId", awsOwner)
	x = x.element("routeSet", func(x awsXML) awsXML {
		var all strings.Builder
		for _, c := range a.CIDRs {
			all.WriteString(string(a.showRoute(cloud.Route{Dst: c, Target: "local"}, "CreateRouteTable")))
		}
		for _, r := range routes {
			if r.Table == t.ID {
				all.WriteString(string(a.showRoute(r, "CreateRoute")))
			}
		}
		return x + awsXML(all.String())
	})
	x = x.element("associationSet", func(x awsXML) awsXML {
		show := func(id, subnet string, main bool) {
			x = x.element("item", func(x awsXML) awsXML {
				x = x.text("routeTableAssociationId", id).text("routeTableId", t.ID).text("main", strconv.FormatBool(main))
				if subnet != "" {
					x = x.text("subnetId", subnet)
				}
				return x.element("associationState", func(x awsXML) awsXML { return x.text("state", "associated") })
			})
		}
		if t.Main {
			show("rtbassoc-main-"+t.ID, "", true)
		}
		for _, s := range t.Subnets {
			show("rtbassoc-"+s, s, false)
		}
		return x
	})
	return x.element("propagatingVgwSet", awsNothing).element("tagSet", awsNothing)
}

func awsNothing(x awsXML) awsXML { return x }

// awsTargetNames are the elements of a route's target, by the first letters of its ID. A gateway is any other.
var awsTargetNames = map[string]string{"eni": "networkInterfaceId", "i": "instanceId", "nat": "natGatewayId",
	"tgw": "transitGatewayId",
	"pcx": "vpcPeeringConnectionId", "eigw": "egressOnlyInternetGatewayId", "lgw": "localGatewayId",
	"cagw": "carrierGatewayId"}

func (a *aws) showRoute(r cloud.Route, origin string) awsXML {
	return awsXML("").element("item", func(x awsXML) awsXML {
		if r.Dst.Addr().Is4() {
			x = x.text("destinationCidrBlock", r.Dst.String())
		} else {
			x = x.text("destinationIpv6CidrBlock", r.Dst.String())
		}
		kind, _, _ := strings.Cut(r.Target, "-")
		name := awsTargetNames[kind]
		if name == "" {
			name = "gatewayId"
		}
		x = x.text(name, r.Target)
		if n, ok := a.NIC(func(n NIC) bool { return n.ID == r.Target }); ok && n.Instance != "" {
			x = x.text("instanceId", n.Instance).text("instanceOwnerId", awsOwner)
		}
		if r.Mark == "propagated" {
			origin = "EnableVgwRoutePropagation"
		}
		state := cloud.Active
		if r.State == cloud.Blackhole {
			state = r.State
		}
		return x.text("origin", origin).text("state", state.String())
	})
}

func awsNoTable(id string) error {
	return awsRefuse("InvalidRouteTableID.NotFound", "The routeTable ID '%s' does not exist", id)
}

// route returns what a write is about. A delete has no target.
func (a *aws) route(q awsQuery) (r cloud.Route, err error) {
	r.Table = q.get("RouteTableId")
	if r.Dst, err = q.destination(); err != nil {
		return r, err
	}
	if !slices.ContainsFunc(a.Tables(), func(t Table) bool { return t.ID == r.Table }) {
		return r, awsNoTable(r.Table)
	}
	if slices.ContainsFunc(a.CIDRs, func(c netip.Prefix) bool {
		return c.Contains(r.Dst.Addr()) &&
			c.Bits() <= r.Dst.Bits()
	}) {
		return r, awsRefuse("InvalidParameterValue",
			"The destination CIDR block %s is equal to or more specific than one of this VPC's CIDR blocks.", r.Dst)
	}
	if q.name == "DeleteRoute" {
		return r, nil
	}
	for name := range awsTargets {
		switch id := q.get(name); {
		case id != "" && r.Target != "":
			return r, awsRefuse("InvalidParameterCombination", "The parameter %s cannot be used with another target", name)
		case id != "":
			r.Target = id
		}
	}
	if r.Target == "" {
		return r, awsRefuse("MissingParameter",
			"The request must contain exactly one of gatewayId, natGatewayId, networkInterfaceId, "+
				"vpcPeeringConnectionId, egressOnlyInternetGatewayId, transitGatewayId or instanceId")
	}
	if _, ok := a.NIC(func(n NIC) bool { return n.ID == r.Target }); strings.HasPrefix(r.Target, "eni-") && !ok {
		return r, awsRefuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", r.Target)
	}
	return r, nil
}

func (a *aws) createRoute(q awsQuery) (awsXML, error) {
	r, err := a.route(q)
	if err != nil {
		return "", err
	}
	err = a.Apply(cloud.Change{Op: cloud.Create, Route: r})
	switch {
	case errors.Is(err, cloud.ErrExists):
		return "", awsRefuse("RouteAlreadyExists", "The route identified by %s already exists.", r.Dst)
	case errors.Is(err, cloud.ErrFull):
		return "", awsRefuse("RouteLimitExceeded", "The maximum number of routes in the table %s has been reached.", r.Table)
	}
	return awsXML("").text("return", "true"), err
}

func (a *aws) replaceRoute(q awsQuery) (awsXML, error) {
	r, err := a.route(q)
	if err != nil {
		return "", err
	}
	if err = a.Apply(cloud.Change{Op: cloud.Replace, Route: r}); errors.Is(err, cloud.ErrGone) {
		return "", awsRefuse("InvalidParameterValue",
			"There is no route defined for '%s' in the route table. Use CreateRoute instead.", r.Dst)
	}
	return awsXML("").text("return", "true"), err
}

func (a *aws) deleteRoute(q awsQuery) (awsXML, error) {
	r, err := a.route(q)
	if err != nil {
		return "", err
	}
	if err = a.Apply(cloud.Change{Op: cloud.Delete, Route: r}); errors.Is(err, cloud.ErrGone) {
		return "", awsRefuse("InvalidRoute.NotFound", "no route with destination-cidr-block %s in route table %s", r.Dst,
			r.Table)
	}
	return awsXML("").text("return", "true"), err
}

func (a *aws) describeNICs(q awsQuery) (awsXML, error) {
	wanted := q.list("NetworkInterfaceId")
	for _, id := range wanted {
		if _, ok := a.NIC(func(n NIC) bool { return n.ID == id }); !ok {
			return "", awsRefuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
		}
	}
	var shown []NIC
	for _, n := range a.NICs() {
		var addrs []string
		for _, addr := range n.Addrs {
			addrs = append(addrs, addr.String())
		}
		ok, err := q.filtered(map[string][]string{"network-interface-id": {n.ID}, "vpc-id": {a.ID}, "subnet-id": {n.Subnet},
			"mac-address":            {n.mac()},
			"attachment.instance-id": {n.Instance}, "addresses.private-ip-address": addrs,
			"source-dest-check": {strconv.FormatBool(!n.Forwards)}})
		if err != nil {
			return "", err
		}
		if ok && (len(wanted) == 0 || slices.Contains(wanted, n.ID)) {
			shown = append(shown, n)
		}
	}
	from, to, token, err := a.page(q, len(shown), 1000)
	if err != nil {
		return "", err
	}
	x := awsXML("").element("networkInterfaceSet", func(x awsXML) awsXML {
		for _, n := range shown[from:to] {
			x = x.element("item", func(x awsXML) awsXML { return a.showNIC(x, n) })
		}
		return x
	})
	if token != "" {
		x = x.text("nextToken", token)
	}
	return x, nil
}

func (a *aws) showNIC(x awsXML, n NIC) awsXML {
	x = x.text("networkInterfaceId", n.ID).text("subnetId", n.Subnet).text("vpcId", a.ID).text("ownerId", awsOwner)
	x = x.text("status", "in-use").text("macAddress", n.mac()).text("sourceDestCheck", strconv.FormatBool(!n.Forwards))
	if n.Instance != "" {
		x = x.element("attachment", func(x awsXML) awsXML {
			return x.text("attachmentId", "eni-attach-"+n.ID).text("instanceId", n.Instance).text("instanceOwnerId", awsOwner).
				text("deviceIndex", "0").text("status", "attached")
		})
	}
	if len(n.Addrs) > 0 && n.Addrs[0].Is4() {
		x = x.text("privateIpAddress", n.Addrs[0].String())
	}
	return x.element("ipv6AddressesSet", func(x awsXML) awsXML {
		for _, addr := range n.Addrs {
			if addr.Is6() {
				x = x.element("item", func(x awsXML) awsXML { return x.text("ipv6Address", addr.String()) })
			}
		}
		return x
	})
}

func (a *aws) modifyNIC(q awsQuery) (awsXML, error) {
	id, check := q.get("NetworkInterfaceId"), q.get("SourceDestCheck.Value")
	if check == "" {
		return "", awsRefuse("MissingParameter", "The request must contain the parameter sourceDestCheck")
	}
	if !a.SetForwards(id, check == "false") {
		return "", awsRefuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
	}
	return awsXML("").text("return", "true"), nil
}
