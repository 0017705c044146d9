package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
)

// gceInsertable are the fields of a route that a caller may write.
var gceInsertable = []string{"name", "description", "network", "destRange", "priority", "tags", "nextHopInstance",
	"nextHopIp", "nextHopGateway", "params", "kind"}

func (g *gce) insertRoute(r *http.Request) (any, error) {
	if err := g.Call("Apply"); err != nil {
		return nil, err
	}
	if err := errors.Join(gceQuery(r, "requestId"), g.inProject(r)); err != nil {
		return nil, gceFirst(err)
	}
	var w gceRoute
	if err := gceBody(r, &w, gceInsertable...); err != nil {
		return nil, err
	}
	route, err := g.wanted(w)
	if err != nil {
		return nil, err
	}
	permissions := []string{"compute.routes.create", "compute.networks.updatePolicy"}
	if w.NextHopInstance != "" {
		permissions = append(permissions, "compute.instances.use")
	}
	path := "projects/" + g.project() + "/global/routes/" + w.Name
	if err := g.permit(path, permissions...); err != nil {
		return nil, err
	}
	if g.isBusy(w.Name) {
		return nil, gceError{http.StatusBadRequest, "resourceNotReady", fmt.Sprintf("The resource '%s' is not ready", path)}
	}
	full := g.Faults().Full
	if err := g.write(func(routes []cloud.Route) ([]cloud.Route, error) {
		if slices.ContainsFunc(routes, func(o cloud.Route) bool { return gceNameOf(o) == w.Name }) {
			return nil, gceError{http.StatusConflict, "alreadyExists", fmt.Sprintf("The resource '%s' already exists", path)}
		}
		if full > 0 && len(routes) >= full {
			return nil, cloud.ErrFull
		}
		return append(routes, route), nil
	}); err != nil {
		return nil, err
	}
	if w.Priority == nil {
		usual := uint32(1000)
		w.Priority = &usual
	}
	w.Created = gceTime(time.Now())
	g.mu.Lock()
	g.made[w.Name] = w
	g.mu.Unlock()
	return g.begin("insert", w.Name), nil
}

// wanted returns the route that a caller asks for, if the API takes it.
func (g *gce) wanted(w gceRoute) (cloud.Route, error) {
	invalid := func(field, value, why string) (cloud.Route, error) {
		return cloud.Route{}, gceInvalid("Invalid value for field 'resource.%s': '%s'. %s", field, value, why)
	}
	dst, err := netip.ParsePrefix(w.DestRange)
	switch {
	case !gceName.MatchString(w.Name):
		return invalid("name", w.Name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	case strings.Replace(gcePath(w.Network), "projects/"+gceNumber(g.project())+"/", "projects/"+g.project()+"/", 1) != g.ID:
		return invalid("network", w.Network, "The URL is malformed.")
	case err != nil:
		return invalid("destRange", w.DestRange, "Must be a CIDR address range.")
	case dst != dst.Masked():
		return invalid("destRange", w.DestRange, "Must be the first address of the range: "+dst.Masked().String()+".")
	case w.Priority != nil && *w.Priority > 65535:
		return invalid("priority", fmt.Sprint(*w.Priority), "Must be less than or equal to 65535")
	}
	for _, o := range g.Routes() {
		if strings.Contains(o.Target, "/networks/") && o.Dst.Contains(dst.Addr()) && dst.Bits() >= o.Dst.Bits() {
			return invalid("destRange", w.DestRange, "It is equal to or more specific than the subnetwork's "+o.Dst.String()+".")
		}
	}
	route := cloud.Route{Dst: dst, Name: w.Name, Mark: w.Description}
	hops := slices.DeleteFunc([]string{w.NextHopInstance, w.NextHopIP, w.NextHopGateway}, func(s string) bool { return s == "" })
	if len(hops) != 1 {
		return cloud.Route{}, gceInvalid("Exactly one next hop must be specified; there are %d.", len(hops))
	}
	switch {
	case w.NextHopIP != "":
		addr, err := netip.ParseAddr(w.NextHopIP)
		if err != nil || addr.Is4() != dst.Addr().Is4() {
			return invalid("nextHopIp", w.NextHopIP, "Must be an address of the destination's family.")
		}
		route.Target = addr.String()
	case w.NextHopGateway != "":
		if gcePath(w.NextHopGateway) != "projects/"+g.project()+"/global/gateways/default-internet-gateway" {
			return invalid("nextHopGateway", w.NextHopGateway, "The URL is malformed.")
		}
		route.Target = "default-internet-gateway"
	default:
		route.Target, err = g.hop(w.NextHopInstance)
	}
	return route, err
}

// hop returns the instance that a route may lead to: one of the network's project.
func (g *gce) hop(full string) (string, error) {
	i, err := parseGCEInstance(gcePath(full))
	if err != nil || i.project != g.project() {
		return "", gceInvalid("Invalid value for field 'resource.nextHopInstance': '%s'. "+
			"The instance must be in the project of the route.", full)
	}
	if _, ok := g.NIC(func(nic NIC) bool { return nic.ID == gcePath(full) }); !ok {
		return "", gceNotFound(gcePath(full))
	}
	return gcePath(full), nil
}

// gceInstance is an instance's name in full.
type gceInstance struct{ project, zone, name string }

var gceInstancePath = regexp.MustCompile(`^projects/([^/]+)/zones/([^/]+)/instances/([^/]+)$`)

func parseGCEInstance(path string) (gceInstance, error) {
	m := gceInstancePath.FindStringSubmatch(path)
	if m == nil {
		return gceInstance{}, fmt.Errorf("%q is not projects/PROJECT/zones/ZONE/instances/NAME", path)
	}
	return gceInstance{m[1], m[2], m[3]}, nil
}

// gcePath returns a resource's name without the address of the API.
func gcePath(full string) string {
	if _, path, ok := strings.Cut(full, "/compute/v1/"); ok {
		return path
	}
	return full
}

// gceFirst returns the first of joined errors.
func gceFirst(err error) error {
	if e := (gceError{}); errors.As(err, &e) {
		return e
	}
	return err
}

// gceQuery returns an error if a request has parameters that a method has not.
func gceQuery(r *http.Request, known ...string) error {
	for name, values := range r.URL.Query() {
		if !slices.Contains(append(known, "alt", "prettyPrint", "fields", "key", "quotaUser"), name) {
			return gceInvalid("Invalid JSON payload received. Unknown name \"%s\": Cannot bind query parameter. "+
				"Field '%s' could not be found in request message.", name, name)
		}
		if len(values) != 1 || name == "alt" && values[0] != "json" {
			return gceInvalid("Invalid value at '%s': %q", name, values)
		}
	}
	return nil
}

// gceBody decodes a request's body, which may have the named fields only.
func gceBody(r *http.Request, to any, known ...string) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return gceInvalid("Invalid JSON payload received. %v", err)
	}
	for name := range fields {
		if !slices.Contains(known, name) {
			return gceInvalid("Invalid JSON payload received. Unknown name \"%s\": Cannot find field.", name)
		}
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(to); err != nil {
		return gceInvalid("Invalid JSON payload received. %v", err)
	}
	return nil
}
