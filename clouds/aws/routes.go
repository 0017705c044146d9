package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/twill-net/twill/cloud"
)

// propagated marks a route that a virtual private gateway made. It cannot be replaced: a static route is made beside
// it, and counts more.
const propagated = "propagated"

// maxPages of an answer are read: more is a server that goes round in circles.
const maxPages = 1000

// describe returns routing tables, from all pages.
func (c *client) describe(ctx context.Context, ask *ec2.DescribeRouteTablesInput) (tables []types.RouteTable,
	err error) {
	in, err := c.in(ctx)
	if err != nil {
		return nil, err
	}
	for range maxPages {
		out, err := c.ec2.DescribeRouteTables(ctx, ask, in)
		if err != nil {
			return nil, c.explain("DescribeRouteTables", err)
		}
		for _, t := range out.RouteTables {
			if id := awssdk.ToString(t.RouteTableId); !isName(id) {
				return nil, fmt.Errorf("DescribeRouteTables: the answer has a table %s, and that is no ID", shorten(id))
			}
		}
		tables = append(tables, out.RouteTables...)
		if awssdk.ToString(out.NextToken) == "" {
			return tables, nil
		}
		ask.NextToken = out.NextToken
	}
	return nil, fmt.Errorf("DescribeRouteTables: there are more than %d pages", maxPages)
}

// tableOf returns the routing table of an interface's subnet: its own, or else the VPC's main one.
func (c *client) tableOf(ctx context.Context, n nic) (string, error) {
	for _, filters := range [][]types.Filter{
		{filter("association.subnet-id", n.subnet)},
		{filter("vpc-id", n.vpc), filter("association.main", "true")},
	} {
		tables, err := c.describe(ctx, &ec2.DescribeRouteTablesInput{Filters: filters})
		if err != nil {
			return "", fmt.Errorf("find the routing table of %s: %w", n.subnet, err)
		}
		if len(tables) > 0 {
			return *tables[0].RouteTableId, nil
		}
	}
	return "", fmt.Errorf("neither %s nor %s has a routing table: set RouteTableID", n.subnet, n.vpc)
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: awssdk.String(name), Values: values}
}

// List implements cloud.Cloud.
func (c *client) List(ctx context.Context, self cloud.Self) (routes []cloud.Route, err error) {
	tables, err := c.describe(ctx, &ec2.DescribeRouteTablesInput{RouteTableIds: self.Tables})
	if err != nil {
		return nil, err
	}
	for _, id := range self.Tables {
		i := slices.IndexFunc(tables, func(t types.RouteTable) bool { return awssdk.ToString(t.RouteTableId) == id })
		if i < 0 {
			return nil, fmt.Errorf("DescribeRouteTables: the answer has no %s", id)
		}
		if vpc := awssdk.ToString(tables[i].VpcId); vpc != self.Network {
			return nil, fmt.Errorf("the routing table %s is one of %s, and this node is in %s", id, shorten(vpc), self.Network)
		}
		of, err := routesOf(tables[i])
		if err != nil {
			return nil, err
		}
		routes = append(routes, of...)
	}
	return routes, nil
}

// routesOf returns a table's routes to single prefixes, but for propagated ones to the destination of a static one: that
// counts more, and a delete, which is by destination, would end it.
func routesOf(t types.RouteTable) (routes []cloud.Route, err error) {
	for _, r := range t.Routes {
		text := cmp.Or(awssdk.ToString(r.DestinationCidrBlock), awssdk.ToString(r.DestinationIpv6CidrBlock))
		if text == "" {
			continue // to a prefix list
		}
		dst, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the routing table %s has a route to %s, and that is no CIDR",
				awssdk.ToString(t.RouteTableId), shorten(text))
		}
		route := cloud.Route{Table: awssdk.ToString(t.RouteTableId), Dst: dst.Masked(), Target: target(r)}
		if r.State == types.RouteStateBlackhole {
			route.State = cloud.Blackhole
		}
		if r.Origin == types.RouteOriginEnableVgwRoutePropagation {
			route.Mark = propagated
		}
		routes = append(routes, route)
	}
	static := map[netip.Prefix]bool{}
	for _, r := range routes {
		static[r.Dst] = static[r.Dst] || r.Mark != propagated
	}
	return slices.DeleteFunc(routes, func(r cloud.Route) bool { return r.Mark == propagated && static[r.Dst] }), nil
}

// target returns where a route leads. Only that of an interface can be a node's.
func target(r types.Route) string {
	for _, id := range []*string{
		r.NetworkInterfaceId, r.InstanceId, r.GatewayId, r.NatGatewayId, r.TransitGatewayId, r.VpcPeeringConnectionId,
		r.EgressOnlyInternetGatewayId, r.LocalGatewayId, r.CarrierGatewayId, r.CoreNetworkArn, r.OdbNetworkArn, r.IpAddress,
	} {
		if awssdk.ToString(id) != "" {
			return shorten(*id)
		}
	}
	return "unknown"
}

// Apply implements cloud.Cloud.
func (c *client) Apply(ctx context.Context, self cloud.Self, change cloud.Change) error {
	in, err := c.in(ctx)
	if err != nil {
		return err
	}
	if change.Op == cloud.Delete {
		if err := c.unchanged(ctx, self, change.Route); err != nil {
			return err
		}
	}
	return c.write(ctx, change, false, in)
}

// unchanged returns an error if a route is not what it was. EC2 deletes by destination, whoever has that by now.
func (c *client) unchanged(ctx context.Context, self cloud.Self, was cloud.Route) error {
	all, err := c.List(ctx, cloud.Self{Network: self.Network, Tables: []string{was.Table}})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(r cloud.Route) bool { return r.Dst == was.Dst })
	switch {
	case i < 0:
		return fmt.Errorf("%s has none to %s: %w", was.Table, was.Dst, cloud.ErrGone)
	case all[i].Target != was.Target || all[i].State != was.State:
		return fmt.Errorf("%s is now %s: %w", was, all[i], cloud.ErrGone)
	}
	return nil
}

// write sends a change. A dry one changes nothing, and always is an error: DryRunOperation if it is permitted.
func (c *client) write(ctx context.Context, change cloud.Change, dry bool, in func(*ec2.Options)) (err error) {
	r := change.Route
	table, to := awssdk.String(r.Table), awssdk.String(r.Target)
	var dst4, dst6 *string
	if text := awssdk.String(r.Dst.String()); r.Dst.Addr().Is4() {
		dst4 = text
	} else {
		dst6 = text
	}
	op := change.Op
	if op == cloud.Replace && change.Old.Mark == propagated {
		op = cloud.Create
	}
	switch op {
	case cloud.Create:
		var out *ec2.CreateRouteOutput
		out, err = c.ec2.CreateRoute(ctx, &ec2.CreateRouteInput{RouteTableId: table, DestinationCidrBlock: dst4,
			DestinationIpv6CidrBlock: dst6, NetworkInterfaceId: to, DryRun: awssdk.Bool(dry)}, in)
		if err == nil && !awssdk.ToBool(out.Return) {
			err = errors.New("EC2 does not say that it has made the route")
		}
	case cloud.Replace:
		_, err = c.ec2.ReplaceRoute(ctx, &ec2.ReplaceRouteInput{RouteTableId: table, DestinationCidrBlock: dst4,
			DestinationIpv6CidrBlock: dst6, NetworkInterfaceId: to, DryRun: awssdk.Bool(dry)}, in)
	default:
		_, err = c.ec2.DeleteRoute(ctx, &ec2.DeleteRouteInput{RouteTableId: table, DestinationCidrBlock: dst4,
			DestinationIpv6CidrBlock: dst6, DryRun: awssdk.Bool(dry)}, in)
	}
	if err != nil {
		return c.explain(action(op), err)
	}
	return nil
}

// action returns the name of an operation's action.
func action(op cloud.Op) string { return [...]string{"CreateRoute", "ReplaceRoute", "DeleteRoute"}[op] }
