package ali

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/cloud"
)

// services is the block of Alibaba's own services, which every VPC has a route to.
var services = netip.MustParsePrefix("100.64.0.0/10")

// Check implements cloud.Cloud.
func (a *api) Check(ctx context.Context, self cloud.Self) ([]cloud.Trouble, error) {
	region, err := a.where(ctx)
	if err != nil {
		return nil, err
	}
	forwarding, err := a.checkForwarding(ctx, region, self)
	if err != nil {
		return nil, err
	}
	tables, err := a.checkTables(ctx, self)
	if err != nil {
		return nil, err
	}
	return slices.Concat(forwarding, tables, a.checkOverlap(self)), nil
}

// networkInterface is one as the API has it.
type networkInterface struct {
	NetworkInterfaceId, Type, PrivateIpAddress string

	SourceDestCheck bool
}

// checkForwarding turns the source/destination check off on the network interfaces that pods' packets pass: the one with
// the underlay's address, and the first one, to which a route to an instance leads.
func (a *api) checkForwarding(ctx context.Context, region string, self cloud.Self) ([]cloud.Trouble, error) {
	all, err := a.networkInterfaces(ctx, self.Target)
	if isUnpermitted(err) {
		return []cloud.Trouble{a.denied("ecs:DescribeNetworkInterfaces", err)}, nil
	}
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	own := a.nic.id
	a.mu.Unlock()
	var troubles []cloud.Trouble
	for _, n := range all {
		if !n.SourceDestCheck || n.Type != "Primary" && n.NetworkInterfaceId != own {
			continue
		}
		err := a.call(ctx, ecs, "ModifyNetworkInterfaceAttribute",
			params{"NetworkInterfaceId": n.NetworkInterfaceId, "SourceDestCheck": "false"}, &struct{}{})
		if err == nil {
			continue
		}
		if !isUnpermitted(err) {
			return nil, err
		}
		troubles = append(troubles, a.denied("ecs:ModifyNetworkInterfaceAttribute", err), cloud.Trouble{
			ID: cloud.ForwardingOff, Object: n.NetworkInterfaceId,
			Actual: "its source/destination check is on, and it drops packets of pods",
			Fix: fmt.Sprintf("aliyun ecs ModifyNetworkInterfaceAttribute --RegionId %s --NetworkInterfaceId %s "+
				"--SourceDestCheck false", region, n.NetworkInterfaceId)})
	}
	return troubles, nil
}

// networkInterfaces returns those of an instance.
func (a *api) networkInterfaces(ctx context.Context, instance string) (all []networkInterface, err error) {
	query := params{"InstanceId": instance, "MaxResults": strconv.Itoa(pageSize)}
	for range maxPages {
		var page struct {
			NextToken            string
			NetworkInterfaceSets struct{ NetworkInterfaceSet []networkInterface }
		}
		if err := a.call(ctx, ecs, "DescribeNetworkInterfaces", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.NetworkInterfaceSets.NetworkInterfaceSet...)
		if page.NextToken == "" {
			return all, nil
		}
		query["NextToken"] = page.NextToken
	}
	return nil, fmt.Errorf("DescribeNetworkInterfaces: the listing does not end after %d pages", maxPages)
}

// table is a routing table as the API has it.
type table struct {
	RouteTableId, RouteTableType, AssociateType string

	VSwitchIds struct{ VSwitchId []string }
}

// tables returns those of a VPC.
func (a *api) tables(ctx context.Context, network string) (all []table, err error) {
	const size = 50
	for number := 1; number <= maxPages; number++ {
		var page struct {
			TotalCount      int
			RouterTableList struct{ RouterTableListType []table }
		}
		err := a.call(ctx, vpc, "DescribeRouteTableList",
			params{"VpcId": network, "PageNumber": strconv.Itoa(number), "PageSize": strconv.Itoa(size)}, &page)
		if err != nil {
			return nil, err
		}
		found := page.RouterTableList.RouterTableListType
		all = append(all, found...)
		if len(found) == 0 || len(all) >= page.TotalCount {
			return all, nil
		}
	}
	return nil, fmt.Errorf("DescribeRouteTableList: the listing does not end after %d pages", maxPages)
}

// checkTables looks for tables of other vSwitches of the network, which get no routes.
func (a *api) checkTables(ctx context.Context, self cloud.Self) (troubles []cloud.Trouble, err error) {
	all, err := a.tables(ctx, self.Network)
	if isUnpermitted(err) {
		return []cloud.Trouble{a.denied("vpc:DescribeRouteTableList", err)}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		kept := slices.Contains(self.Tables, t.RouteTableId)
		if kept || len(t.VSwitchIds.VSwitchId) == 0 || t.AssociateType == "Gateway" {
			continue
		}
		list, err := json.Marshal(append(slices.Clone(self.Tables), t.RouteTableId))
		if err != nil {
			return nil, err
		}
		troubles = append(troubles, cloud.Trouble{ID: cloud.Unlisted, Object: t.RouteTableId,
			Actual: fmt.Sprintf("vSwitches use it (%s), and it gets no routes to pods", strings.Join(t.VSwitchIds.VSwitchId, ", ")),
			Fix:    fmt.Sprintf(`if nodes are there, list it in the Backend of net-conf.json: "RouteTableID": %s`, list)})
	}
	return troubles, nil
}

// checkOverlap compares the pools with the blocks that a route's destination must not be in.
func (a *api) checkOverlap(self cloud.Self) (troubles []cloud.Trouble) {
	a.mu.Lock()
	blocks := slices.Clone(a.nic.blocks)
	a.mu.Unlock()
	for _, pool := range a.Pools {
		for _, b := range append(blocks, services) {
			if !pool.Network.Overlaps(b) {
				continue
			}
			owner := self.Network
			if b == services {
				owner = "Alibaba Cloud's services"
			}
			troubles = append(troubles, cloud.Trouble{ID: cloud.Overlap, Object: pool.Network.String(),
				Actual: fmt.Sprintf("it overlaps %s of %s, and the cloud refuses routes into a vSwitch's block", b, owner),
				Fix:    "choose a Network in net-conf.json that overlaps neither the VPC's blocks nor 100.64.0.0/10"})
			break
		}
	}
	return troubles
}

// Permissions are the actions that the node's role or access key has to permit.
var Permissions = []string{
	"vpc:DescribeVSwitchAttributes", "vpc:DescribeRouteTableList", "vpc:DescribeRouteEntryList", "vpc:CreateRouteEntry",
	"vpc:DeleteRouteEntry", "ecs:DescribeNetworkInterfaces", "ecs:ModifyNetworkInterfaceAttribute",
}

// denied says which permission is missing, and how to give it.
func (a *api) denied(action string, err error) cloud.Trouble {
	attach := "AttachPolicyToRole --PolicyType Custom --PolicyName twill --RoleName ROLE"
	if a.key.id != "" {
		attach = "AttachPolicyToUser --PolicyType Custom --PolicyName twill --UserName USER"
	}
	return cloud.Trouble{ID: cloud.Denied, Object: action, Actual: err.Error(),
		Fix: fmt.Sprintf(`aliyun ram CreatePolicy --PolicyName twill --PolicyDocument '{"Version":"1","Statement":[`+
			`{"Effect":"Allow","Action":["%s"],"Resource":"*"}]}' && aliyun ram %s`, strings.Join(Permissions, `","`), attach)}
}
