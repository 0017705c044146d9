package fake

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
)

// gceRoute is a route as the API writes it.
type gceRoute struct {
	Kind            string       `json:"kind"`
	ID              string       `json:"id"`
	Created         string       `json:"creationTimestamp"`
	Name            string       `json:"name"`
	Description     string       `json:"description"`
	Network         string       `json:"network"`
	Tags            []string     `json:"tags,omitempty"`
	DestRange       string       `json:"destRange"`
	Priority        *uint32      `json:"priority"`
	NextHopInstance string       `json:"nextHopInstance,omitempty"`
	NextHopIP       string       `json:"nextHopIp,omitempty"`
	NextHopGateway  string       `json:"nextHopGateway,omitempty"`
	NextHopNetwork  string       `json:"nextHopNetwork,omitempty"`
	RouteStatus     string       `json:"routeStatus,omitempty"`
	RouteType       string       `json:"routeType,omitempty"`
	SelfLink        string       `json:"selfLink"`
	Warnings        []gceWarning `json:"warnings,omitempty"`
}

type gceWarning struct {
	Code    string              `json:"code"`
	Message string              `json:"message"`
	Data    []map[string]string `json:"data"`
}

var (
	gceName   = regexp.MustCompile(`^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
	gceFilter = regexp.MustCompile(`^\(?\s*(name|network|destRange|description|nextHopInstance|nextHopIp) (eq|ne) ` +
		`("(?:[^"\\]|\\.)*"|'[^']*'|[^\s()'"]+)\s*\)?$`)
)

// gceNameOf returns a route's name. One that somebody has put into the network without a name has one, too.
func gceNameOf(r cloud.Route) string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprintf("route-%016x", gceHash(r.String()))
}

// named returns the route with a name.
func (g *gce) named(name string) (cloud.Route, bool) {
	all := g.Routes()
	i := slices.IndexFunc(all, func(r cloud.Route) bool { return gceNameOf(r) == name || gceID(gceNameOf(r)) == name })
	if i < 0 {
		return cloud.Route{}, false
	}
	return all[i], true
}

func (g *gce) noRoute(name string) error {
	return gceNotFound("projects/" + g.project() + "/global/routes/" + name)
}

// resource returns a route as the API does.
func (g *gce) resource(r cloud.Route) gceRoute {
	name, usual := gceNameOf(r), uint32(1000)
	w := gceRoute{Kind: "compute#route", ID: gceID(name), Created: "2026-01-02T03:04:05.678-07:00", Name: name,
		Description: r.Mark, Network: gceURL(g.ID), DestRange: r.Dst.String(), Priority: &usual, RouteType: "STATIC",
		SelfLink: gceURL("projects/" + g.project() + "/global/routes/" + name)}
	g.mu.Lock()
	if made, ok := g.made[name]; ok {
		w.Created, w.Priority, w.Tags = made.Created, made.Priority, made.Tags
	}
	g.mu.Unlock()
	addr, err := netip.ParseAddr(r.Target)
	switch {
	case err == nil:
		w.NextHopIP = addr.String()
	case strings.Contains(r.Target, "/instances/"):
		w.NextHopInstance = gceURL(r.Target)
	case strings.Contains(r.Target, "/networks/"):
		w.NextHopNetwork, w.RouteType = gceURL(r.Target), "SUBNET"
	default:
		w.NextHopGateway = gceURL("projects/" + g.project() + "/global/gateways/" + r.Target[strings.LastIndex(r.Target, "/")+1:])
	}
	if r.State == cloud.Pending {
		w.RouteStatus = "PENDING"
	}
	w.Warnings = g.warnings(r, w)
	return w
}

// warnings returns what the API thinks of a route's next hop.
func (g *gce) warnings(r cloud.Route, w gceRoute) (all []gceWarning) {
	nic, ok := g.NIC(func(nic NIC) bool { return nic.ID == r.Target })
	warn := func(code, message, key, value string) {
		all = append(all, gceWarning{code, message, []map[string]string{{"key": key, "value": value}}})
	}
	switch {
	case r.State == cloud.Blackhole && w.NextHopInstance != "":
		warn("NEXT_HOP_INSTANCE_NOT_FOUND", "Next hop instance does not exist.", "instance", w.NextHopInstance)
	case r.State == cloud.Blackhole:
		warn("NEXT_HOP_ADDRESS_NOT_ASSIGNED", "Next hop address is not assigned.", "ip_address", r.Target)
	case ok && !nic.Forwards:
		warn("NEXT_HOP_CANNOT_IP_FORWARD", "Next hop instance cannot forward IP traffic.", "instance", gceURL(nic.Instance))
	}
	if ok && r.Dst.Addr().Is6() && !slices.ContainsFunc(nic.Addrs, netip.Addr.Is6) {
		warn("NEXT_HOP_INSTANCE_HAS_NO_IPV6_INTERFACE", "Next hop instance has no IPv6.", "instance", gceURL(nic.Instance))
	}
	return all
}

func (g *gce) listRoutes(r *http.Request) (any, error) {
	if err := g.Call("List"); err != nil {
		return nil, err
	}
	query := gceQuery(r, "filter", "maxResults", "pageToken", "orderBy", "returnPartialSuccess")
	if err := errors.Join(query, g.inProject(r)); err != nil {
		return nil, gceFirst(err)
	}
	if err := g.permit("projects/"+g.project(), "compute.routes.list"); err != nil {
		return nil, err
	}
	q := r.URL.Query()
	match, err := gceMatch(q.Get("filter"))
	if err != nil {
		return nil, err
	}
	size := 500
	if text := q.Get("maxResults"); text != "" {
		if size, err = strconv.Atoi(text); err != nil || size < 0 || size > 500 {
			return nil, gceInvalid("Invalid value for field 'maxResults': '%s'. Must be between 0 and 500.", text)
		}
	}
	from := 0
	if token := q.Get("pageToken"); token != "" {
		text, _ := base64.URLEncoding.DecodeString(token) // what is no token is no number either
		if from, err = strconv.Atoi(strings.TrimPrefix(string(text), "from ")); err != nil {
			return nil, gceInvalid("Invalid value for field 'pageToken': '%s'. Invalid page token.", token)
		}
	}
	path := "projects/" + g.project() + "/global/routes"
	list := map[string]any{"kind": "compute#routeList", "id": path, "selfLink": gceURL(path)}
	var items []gceRoute
	for _, route := range g.Visible() {
		if w := g.resource(route); match(w) {
			items = append(items, w)
		}
	}
	items = items[min(from, len(items)):]
	if size > 0 && len(items) > size {
		items = items[:size]
		list["nextPageToken"] = base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "from %d", from+size))
	}
	if len(items) > 0 {
		list["items"] = items
	}
	return list, nil
}

// gceMatch returns the condition that a filter is. It is one comparison with a regular expression of the whole field.
func gceMatch(filter string) (func(gceRoute) bool, error) {
	if filter == "" {
		return func(gceRoute) bool { return true }, nil
	}
	m := gceFilter.FindStringSubmatch(filter)
	if m == nil {
		return nil, gceInvalid("Invalid value for field 'filter': '%s'. Invalid list filter expression.", filter)
	}
	literal := m[3]
	if text, err := strconv.Unquote(literal); err == nil {
		literal = text
	}
	whole, err := regexp.Compile("^(?:" + strings.Trim(literal, "'") + ")$")
	if err != nil {
		return nil, gceInvalid("Invalid value for field 'filter': '%s'. Invalid regular expression.", filter)
	}
	return func(w gceRoute) bool {
		field := map[string]string{"name": w.Name, "network": w.Network, "destRange": w.DestRange, "description": w.Description,
			"nextHopInstance": w.NextHopInstance, "nextHopIp": w.NextHopIP}[m[1]]
		return whole.MatchString(field) == (m[2] == "eq")
	}, nil
}

func (g *gce) getRoute(r *http.Request) (any, error) {
	if err := g.Call("List"); err != nil {
		return nil, err
	}
	if err := errors.Join(gceQuery(r), g.inProject(r)); err != nil {
		return nil, gceFirst(err)
	}
	name := r.PathValue("route")
	if err := g.permit("projects/"+g.project()+"/global/routes/"+name, "compute.routes.get"); err != nil {
		return nil, err
	}
	route, ok := g.named(name)
	if !ok {
		return nil, g.noRoute(name)
	}
	return g.resource(route), nil
}

func (g *gce) deleteRoute(r *http.Request) (any, error) {
	if err := g.Call("Apply"); err != nil {
		return nil, err
	}
	if err := errors.Join(gceQuery(r, "requestId"), g.inProject(r)); err != nil {
		return nil, gceFirst(err)
	}
	path := "projects/" + g.project() + "/global/routes/" + r.PathValue("route")
	if err := g.permit(path, "compute.routes.delete", "compute.networks.updatePolicy"); err != nil {
		return nil, err
	}
	route, ok := g.named(r.PathValue("route"))
	if !ok {
		return nil, g.noRoute(r.PathValue("route"))
	}
	if strings.Contains(route.Target, "/networks/") {
		return nil, gceInvalid("The local route cannot be deleted.")
	}
	if err := g.write(func(routes []cloud.Route) ([]cloud.Route, error) {
		i := slices.IndexFunc(routes, func(o cloud.Route) bool { return gceNameOf(o) == gceNameOf(route) })
		if i < 0 {
			return nil, g.noRoute(gceNameOf(route))
		}
		return slices.Delete(routes, i, i+1), nil
	}); err != nil {
		return nil, err
	}
	return g.begin("delete", gceNameOf(route)), nil
}

// write changes the routes. Unlike Apply it permits several to one destination.
func (n *Network) write(f func([]cloud.Route) ([]cloud.Route, error)) (err error) {
	n.edit(func() {
		before := slices.Clone(n.routes)
		var after []cloud.Route
		if after, err = f(slices.Clone(n.routes)); err == nil {
			n.routes, n.old, n.when = after, before, time.Now()
			n.writes++
		}
	})
	return err
}
