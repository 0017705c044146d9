package ali

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/internal/loop"
)

// Pages of answers. A listing that has more is not one.
const (
	pageSize = 100
	maxPages = 500
)

// A replaced route has to be gone before it can be made anew.
const (
	goneTries = 8
	gonePause = time.Second
)

var errSix = errors.New("routes of IPv6 are not made in Alibaba Cloud yet: use IPv4 only")

// entry is a route as the API has it.
type entry struct {
	DestinationCidrBlock, Status, Type, Description, RouteEntryId, InstanceId string

	NextHops struct {
		NextHop []hop
	}
}

type hop struct {
	NextHopId, NextHopType string

	Enabled *int
}

// List implements cloud.Cloud.
func (a *api) List(ctx context.Context, self cloud.Self) (routes []cloud.Route, err error) {
	for _, table := range self.Tables {
		entries, err := a.entries(ctx, params{"RouteTableId": table})
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", table, err)
		}
		for _, e := range entries {
			if r, ok := e.route(table); ok {
				routes = append(routes, r)
			}
		}
	}
	return routes, nil
}

// entries returns the routes that a query fits.
func (a *api) entries(ctx context.Context, query params) (all []entry, err error) {
	query["MaxResult"] = strconv.Itoa(pageSize)
	for range maxPages {
		var page struct {
			NextToken   string
			RouteEntrys struct{ RouteEntry []entry }
		}
		if err := a.call(ctx, vpc, "DescribeRouteEntryList", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.RouteEntrys.RouteEntry...)
		if page.NextToken == "" {
			return all, nil
		}
		query["NextToken"] = page.NextToken
	}
	return nil, fmt.Errorf("DescribeRouteEntryList: the listing does not end after %d pages", maxPages)
}

// route returns a route of the API's as one of package cloud. One to a prefix list is none.
func (e entry) route(table string) (cloud.Route, bool) {
	dst, err := netip.ParsePrefix(e.DestinationCidrBlock)
	if err != nil {
		addr, err := netip.ParseAddr(e.DestinationCidrBlock)
		if err != nil {
			return cloud.Route{}, false
		}
		dst = netip.PrefixFrom(addr, addr.BitLen())
	}
	return cloud.Route{Table: table, Dst: dst.Masked(), Target: e.target(), Name: e.RouteEntryId, Mark: e.Description,
		State: e.state()}, true
}

// target returns the next hop's ID. That of several is no node's.
func (e entry) target() string {
	var ids []string
	for _, h := range e.NextHops.NextHop {
		switch {
		case h.NextHopId != "":
			ids = append(ids, h.NextHopId)
		case h.NextHopType != "":
			ids = append(ids, h.NextHopType) // local, service
		}
	}
	switch {
	case len(ids) > 0:
		return strings.Join(ids, ",")
	case e.InstanceId != "":
		return e.InstanceId
	}
	return "local"
}

// state returns what becomes of packets. A route leads nowhere if none of its next hops is enabled.
func (e entry) state() cloud.State {
	switch e.Status {
	case "Pending", "Creating", "Modifying", "Deleting":
		return cloud.Pending
	}
	for _, h := range e.NextHops.NextHop {
		if h.Enabled == nil || *h.Enabled != 0 {
			return cloud.Active
		}
	}
	if len(e.NextHops.NextHop) == 0 {
		return cloud.Active
	}
	return cloud.Blackhole
}

// Apply implements cloud.Cloud.
func (a *api) Apply(ctx context.Context, _ cloud.Self, c cloud.Change) error {
	if c.Route.Dst.Addr().Is6() {
		return errSix
	}
	switch c.Op {
	case cloud.Create:
		return a.create(ctx, c.Route)
	case cloud.Replace:
		err := a.remove(ctx, c.Old)
		if err == nil {
			err = a.awaitGone(ctx, c.Old)
		}
		if err != nil && !errors.Is(err, cloud.ErrGone) {
			return err
		}
		return a.create(ctx, c.Route)
	}
	return a.remove(ctx, c.Route)
}

func (a *api) create(ctx context.Context, r cloud.Route) error {
	return a.call(ctx, vpc, "CreateRouteEntry", params{"RouteTableId": r.Table, "DestinationCidrBlock": r.Dst.String(),
		"NextHopType": "Instance", "NextHopId": r.Target, "Description": "Twill: pods of " + r.Target}, &struct{}{})
}

// remove deletes a route if it still leads where it is said to.
func (a *api) remove(ctx context.Context, r cloud.Route) error {
	query := params{"RouteTableId": r.Table, "DestinationCidrBlock": r.Dst.String()}
	if hops := strings.Split(r.Target, ","); len(hops) > 1 {
		for i, h := range hops {
			query[fmt.Sprintf("NextHopList.%d.NextHopId", i+1)] = h
		}
	} else {
		query["NextHopId"] = r.Target
	}
	return a.call(ctx, vpc, "DeleteRouteEntry", query, &struct{}{})
}

// awaitGone waits until a deleted route is not listed any more.
func (a *api) awaitGone(ctx context.Context, r cloud.Route) error {
	for try := range goneTries {
		if try > 0 && !loop.Sleep(ctx, gonePause) {
			return ctx.Err()
		}
		left, err := a.entries(ctx, params{"RouteTableId": r.Table, "DestinationCidrBlock": r.Dst.String()})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(left, func(e entry) bool { return e.target() == r.Target }) {
			return nil
		}
	}
	return fmt.Errorf("the old route is still listed %s after it was deleted: %w", goneTries*gonePause, cloud.ErrBusy)
}
