package gce

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/twill-net/twill/cloud"
)

// mark describes Twill's routes.
const mark = "Route to the pods of a node, kept by Twill"

// priority is that of routes for which nobody asks for one.
var priority = uint32(1000)

// route is a route as the API writes it.
type route struct {
	Name                          string    `json:"name,omitempty"`
	Description                   string    `json:"description,omitempty"`
	Network                       string    `json:"network,omitempty"`
	DestRange                     string    `json:"destRange,omitempty"`
	Priority                      *uint32   `json:"priority,omitempty"`
	Tags                          []string  `json:"tags,omitempty"`
	NextHopInstance               string    `json:"nextHopInstance,omitempty"`
	NextHopIP                     string    `json:"nextHopIp,omitempty"`
	NextHopGateway                string    `json:"nextHopGateway,omitempty"`
	NextHopNetwork                string    `json:"nextHopNetwork,omitempty"`
	NextHopPeering                string    `json:"nextHopPeering,omitempty"`
	NextHopVpnTunnel              string    `json:"nextHopVpnTunnel,omitempty"`
	NextHopIlb                    string    `json:"nextHopIlb,omitempty"`
	NextHopHub                    string    `json:"nextHopHub,omitempty"`
	NextHopInterconnectAttachment string    `json:"nextHopInterconnectAttachment,omitempty"`
	RouteStatus                   string    `json:"routeStatus,omitempty"`
	Warnings                      []warning `json:"warnings,omitempty"`
}

type warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type routeList struct {
	Items         []route `json:"items"`
	NextPageToken string  `json:"nextPageToken"`
	Warning       warning `json:"warning"`
}

// maxPages ends a list that has no end: 500,000 routes.
const maxPages = 1000

// list returns the routes of a network, those that the filter is true for.
func (c *client) list(ctx context.Context, n network, filter string) (all []route, err error) {
	query := url.Values{"filter": {filter}, "maxResults": {"500"}}
	for range maxPages {
		var page routeList
		r := request{method: "routes.list", verb: http.MethodGet, path: n.routes(), query: query}
		if err := c.call(ctx, r, &page); err != nil {
			return nil, err
		}
		if page.Warning.Code == "UNREACHABLE" {
			return nil, fmt.Errorf("routes.list: the answer is not complete: %s", oneLine(page.Warning.Message))
		}
		for _, r := range page.Items {
			if n.has(r.Network) {
				all = append(all, r)
			}
		}
		switch page.NextPageToken {
		case "":
			return all, nil
		case query.Get("pageToken"):
			return nil, fmt.Errorf("routes.list: the page %q follows itself", oneLine(page.NextPageToken))
		}
		query.Set("pageToken", page.NextPageToken)
	}
	return nil, fmt.Errorf("routes.list: there are more than %d pages", maxPages)
}

// lead sets where the route leads: to a machine, or to an address in a Shared VPC.
func (w *route) lead(target string, dst netip.Prefix) error {
	addr, err := netip.ParseAddr(target)
	switch {
	case err != nil && !strings.HasPrefix(target, "projects/"):
		return fmt.Errorf("%q is neither an instance nor an address", oneLine(target))
	case err != nil:
		w.NextHopInstance = resources + target
	case addr.Is4() && dst.Addr().Is6():
		return fmt.Errorf("%s: a route of IPv6 in a Shared VPC is not supported: use IPv4 there, "+
			"or machines of the network's own project", dst)
	default:
		w.NextHopIP = addr.String()
	}
	return nil
}

// route returns the route in Twill's terms.
func (w route) route(self cloud.Self) (cloud.Route, error) {
	dst, err := netip.ParsePrefix(w.DestRange)
	if err != nil {
		return cloud.Route{}, fmt.Errorf("the route %q leads to %q, which is no prefix", oneLine(w.Name), oneLine(w.DestRange))
	}
	r := cloud.Route{Dst: dst.Masked(), Target: w.target(), Name: w.Name, Mark: w.Description}
	switch {
	case slices.ContainsFunc(w.Warnings, func(n warning) bool { return n.isDead(r.Target == self.Target) }):
		r.State = cloud.Blackhole
	case w.RouteStatus == "PENDING":
		r.State = cloud.Pending
	}
	return r, nil
}

// isDead reports whether packets are dropped. A machine that asks does run, whatever the API has heard of it.
func (w warning) isDead(own bool) bool {
	switch w.Code {
	case "NEXT_HOP_INSTANCE_NOT_FOUND", "NEXT_HOP_INSTANCE_NOT_ON_NETWORK", "NEXT_HOP_ADDRESS_NOT_ASSIGNED":
		return true
	case "NEXT_HOP_NOT_RUNNING":
		return !own
	}
	return false
}

// target returns where the route leads. A route for machines with a tag only is nobody's.
func (w route) target() string {
	target := "nowhere"
	for _, hop := range []string{w.NextHopInstance, w.NextHopIP, w.NextHopGateway, w.NextHopNetwork, w.NextHopPeering,
		w.NextHopVpnTunnel, w.NextHopIlb, w.NextHopHub, w.NextHopInterconnectAttachment} {
		if hop != "" {
			target = resource(hop)
			break
		}
	}
	if len(w.Tags) > 0 {
		target += " for tags " + strings.Join(w.Tags, ",")
	}
	return oneLine(target)
}
