package aws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/subnet"
)

// Check implements cloud.Cloud. What the role may not ask is a trouble, not an error.
func (c *client) Check(ctx context.Context, self cloud.Self) (troubles []cloud.Trouble, err error) {
	for _, check := range []func(context.Context, cloud.Self) ([]cloud.Trouble, error){
		c.checkForwarding, c.checkPermissions, c.checkNetwork,
	} {
		found, err := check(ctx, self)
		if err != nil {
			return nil, err
		}
		troubles = append(troubles, found...)
	}
	return troubles, nil
}

// checkForwarding turns the source/destination check of the node's own interface off.
func (c *client) checkForwarding(ctx context.Context, self cloud.Self) ([]cloud.Trouble, error) {
	in, err := c.in(ctx)
	if err != nil {
		return nil, err
	}
	var denied []cloud.Trouble
	out, err := c.ec2.DescribeNetworkInterfaces(ctx,
		&ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{self.Target}}, in)
	if err != nil {
		err = c.explain("DescribeNetworkInterfaces", err)
	}
	switch {
	case errors.Is(err, cloud.ErrDenied):
		denied = append(denied, c.denied(ctx, "DescribeNetworkInterfaces", err))
	case err != nil:
		return nil, err
	case len(out.NetworkInterfaces) != 1:
		return nil, fmt.Errorf("DescribeNetworkInterfaces: the answer has no %s", self.Target)
	case !awssdk.ToBool(out.NetworkInterfaces[0].SourceDestCheck):
		return nil, nil
	}
	_, err = c.ec2.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: awssdk.String(self.Target),
		SourceDestCheck:    &types.AttributeBooleanValue{Value: awssdk.Bool(false)},
	}, in)
	if err != nil {
		err = c.explain("ModifyNetworkInterfaceAttribute", err)
	}
	if !errors.Is(err, cloud.ErrDenied) {
		return denied, err
	}
	return append(denied, c.denied(ctx, "ModifyNetworkInterfaceAttribute", err), cloud.Trouble{
		ID: cloud.ForwardingOff, Object: self.Target,
		Actual: "the source/destination check is on, or cannot be read: pods' packets are dropped",
		Fix:    "aws ec2 modify-network-interface-attribute --network-interface-id " + self.Target + " --no-source-dest-check",
	}), nil
}

// trial is the destination of writes that are asked for with DryRun: a network of documents, which nobody has. The
// order leaves nothing behind at a server that knows no DryRun.
var trial = netip.MustParsePrefix("192.0.2.0/24")

// checkPermissions asks whether the role may write, until it may.
func (c *client) checkPermissions(ctx context.Context, self cloud.Self) (troubles []cloud.Trouble, err error) {
	c.mu.Lock()
	known := c.allowed[self.Target]
	c.mu.Unlock()
	if known {
		return nil, nil
	}
	in, err := c.in(ctx)
	if err != nil {
		return nil, err
	}
	answered := true
	for _, table := range self.Tables {
		for _, op := range []cloud.Op{cloud.Create, cloud.Replace, cloud.Delete} {
			r := cloud.Route{Table: table, Dst: trial, Target: self.Target}
			err := c.write(ctx, cloud.Change{Op: op, Route: r, Old: r}, true, in)
			var e *explained
			switch {
			case errors.Is(err, cloud.ErrDenied):
				trouble := c.denied(ctx, action(op), err)
				trouble.Object += " " + table
				troubles = append(troubles, trouble)
			case errors.Is(err, cloud.ErrThrottled), ctx.Err() != nil:
				return nil, err
			case err != nil && (!errors.As(err, &e) || e.status/100 != 4):
				answered = false
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allowed[self.Target] = answered && len(troubles) == 0
	return troubles, nil
}

// denied is the trouble of an action that the role lacks.
func (c *client) denied(ctx context.Context, action string, err error) cloud.Trouble {
	policy := fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ec2:%s","Resource":"*"}]}`,
		action)
	return cloud.Trouble{ID: cloud.Denied, Object: "ec2:" + action, Actual: err.Error(),
		Fix: fmt.Sprintf("aws iam put-role-policy --role-name %s --policy-name twill-%s --policy-document '%s'",
			c.role(ctx), action, policy)}
}

// checkNetwork compares the cluster's network and the kept tables with those of the VPC.
func (c *client) checkNetwork(ctx context.Context, self cloud.Self) (troubles []cloud.Trouble, err error) {
	all, err := c.interfaces(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(n nic) bool { return n.id == self.Target })
	if i < 0 {
		return nil, fmt.Errorf("%s is no network interface of this instance any more: the metadata has %s", self.Target,
			describe(all))
	}
	blocks, err := c.cidrs(ctx, all[i])
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		for _, p := range c.pools {
			if p.Network.Overlaps(b) {
				troubles = append(troubles, cloud.Trouble{ID: cloud.Overlap, Object: p.Network.String(),
					Actual: fmt.Sprintf("it overlaps %s of %s: EC2 refuses routes within a VPC's own CIDRs", b, self.Network),
					Fix: "choose another network in net-conf.json, outside of what this prints: aws ec2 describe-vpcs --vpc-ids " +
						self.Network + " --query 'Vpcs[].CidrBlockAssociationSet[].CidrBlock'"})
			}
		}
	}
	unlisted, err := c.checkTables(ctx, self, all[i])
	return append(troubles, unlisted...), err
}

// checkTables finds tables without routes of this node's that somebody sends packets by.
func (c *client) checkTables(ctx context.Context, self cloud.Self, own nic) (troubles []cloud.Trouble, err error) {
	tables, err := c.describe(ctx, &ec2.DescribeRouteTablesInput{Filters: []types.Filter{filter("vpc-id", own.vpc)}})
	if err != nil {
		return nil, err
	}
	mine := usedBy(tables, own.subnet)
	for i, t := range tables {
		id := awssdk.ToString(t.RouteTableId)
		if slices.Contains(self.Tables, id) {
			continue
		}
		user, err := c.user(t, own, i == mine)
		if err != nil {
			return nil, err
		}
		if user == "" {
			continue
		}
		all := strings.Join(append(slices.Clone(self.Tables), id), `", "`)
		troubles = append(troubles, cloud.Trouble{ID: cloud.Unlisted, Object: id,
			Actual: user + ": what is sent by it does not reach this node's pods",
			Fix: fmt.Sprintf(`set "RouteTableID": ["%s"] in net-conf.json's Backend, on all nodes, if pods are to be reached `+
				`from there; see aws ec2 describe-route-tables --route-table-ids %s`, all, id)})
	}
	return troubles, nil
}

// user returns who sends packets by a table, empty if nobody is known to. Of the subnets that use the main table
// because they have no other EC2 does not tell here; the routes of their nodes do.
func (c *client) user(t types.RouteTable, own nic, isMine bool) (string, error) {
	if isMine {
		return "this node's subnet " + own.subnet + " uses it", nil
	}
	routes, err := routesOf(t)
	if err != nil {
		return "", err
	}
	pods := slices.IndexFunc(routes, func(r cloud.Route) bool {
		return strings.HasPrefix(r.Target, "eni-") && slices.ContainsFunc(c.pools,
			func(p subnet.Pool) bool { return p.Fits(r.Dst) })
	})
	if pods >= 0 {
		return "another node keeps a route in it, " + routes[pods].String(), nil
	}
	for _, a := range t.Associations {
		if id := awssdk.ToString(a.SubnetId); id != "" {
			return id + " uses it", nil
		}
	}
	return "", nil
}

// usedBy returns the index of the table that a subnet uses, -1 if there is none.
func usedBy(tables []types.RouteTable, subnet string) (main int) {
	main = -1
	for i, t := range tables {
		for _, a := range t.Associations {
			if awssdk.ToString(a.SubnetId) == subnet {
				return i
			}
			if awssdk.ToBool(a.Main) {
				main = i
			}
		}
	}
	return main
}
