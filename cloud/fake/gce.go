package fake

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/cloud"
)

// GCEOptions are how the front of Google Compute Engine plays it.
type GCEOptions struct {
	// Caller finds the machine that makes a request of the metadata service; nil: the one with the remote address.
	Caller func(*http.Request) (NIC, bool)
	// Operation is how long a change takes until it is done.
	Operation time.Duration
	// Elsewhere are network interfaces that all machines have before the network's one, in other networks.
	Elsewhere []NIC
}

// GCE serves a network by the protocols of Google Compute Engine: what of compute/v1 concerns routes, below /compute/v1/, and
// the metadata service, below /computeMetadata/v1/. Network.ID is projects/PROJECT/global/networks/NAME. A NIC's Instance is
// projects/PROJECT/zones/ZONE/instances/NAME, and its ID, which routes name, is the same; in a Shared VPC, where the instance
// is another project's, it is the address. While Faults.Away is set only the metadata service answers: it is the machine's host.
func GCE(n *Network, o GCEOptions) http.Handler {
	if o.Caller == nil {
		o.Caller = n.byAddress
	}
	g := &gce{Network: n, GCEOptions: o, made: map[string]gceRoute{}, operations: map[string]gceOperation{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/computeMetadata/v1/", g.metadata)
	const project = "/compute/v1/projects/{project}/"
	for pattern, f := range map[string]func(*http.Request) (any, error){
		"GET " + project + "global/routes":                                         g.listRoutes,
		"POST " + project + "global/routes":                                        g.insertRoute,
		"GET " + project + "global/routes/{route}":                                 g.getRoute,
		"DELETE " + project + "global/routes/{route}":                              g.deleteRoute,
		"POST " + project + "global/routes/{resource}/testIamPermissions":          g.testRoute,
		"GET " + project + "global/operations/{operation}":                         g.getOperation,
		"POST " + project + "global/operations/{operation}/wait":                   g.waitOperation,
		"GET " + project + "zones/{zone}/instances/{instance}":                     g.getInstance,
		"POST " + project + "zones/{zone}/instances/{resource}/testIamPermissions": g.testInstance,
	} {
		mux.HandleFunc(pattern, g.answer(f))
	}
	mux.HandleFunc("/", g.answer(func(r *http.Request) (any, error) {
		return nil, gceError{http.StatusNotFound, "notFound", "The requested URL " + r.URL.Path + " was not found."}
	}))
	return mux
}

type gce struct {
	*Network
	GCEOptions

	mu         sync.Mutex
	made       map[string]gceRoute // by name: what a cloud.Route does not have
	operations map[string]gceOperation
	count      int
}

// byAddress returns the NIC that a request came from.
func (n *Network) byAddress(r *http.Request) (NIC, bool) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return NIC{}, false
	}
	return n.NIC(func(nic NIC) bool { return slices.Contains(nic.Addrs, from.Addr().Unmap()) })
}

// gceError is an error of the API.
type gceError struct {
	status  int
	reason  string
	message string
}

func (e gceError) Error() string { return e.message }

// answer serves a method of the API.
func (g *gce) answer(method func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if g.Faults().Away {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.Close()
			}
			return
		}
		result, err := any(nil), gceToken(r)
		if err == nil {
			result, err = method(r)
		}
		status := http.StatusOK
		if err != nil {
			e := g.errorOf(err)
			status = e.status
			domain := "global"
			if e.reason == "quotaExceeded" || e.reason == "rateLimitExceeded" {
				domain = "usageLimits"
			}
			result = map[string]any{"error": map[string]any{"code": e.status, "message": e.message,
				"errors": []map[string]string{{"message": e.message, "domain": domain, "reason": e.reason}}}}
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		w.WriteHeader(status)
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(result)
	}
}

// errorOf returns the API's error for an error of Network.
func (g *gce) errorOf(err error) gceError {
	e := gceError{}
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, cloud.ErrThrottled):
		return gceError{http.StatusForbidden, "rateLimitExceeded", fmt.Sprintf("Quota exceeded for quota metric 'Queries' and limit "+
			"'Queries per minute' of service 'compute.googleapis.com' for consumer 'project_number:%s'.", gceNumber(g.project()))}
	case errors.Is(err, cloud.ErrBusy):
		return gceError{http.StatusBadRequest, "resourceNotReady", fmt.Sprintf("The resource '%s' is not ready", g.ID)}
	case errors.Is(err, cloud.ErrFull):
		return gceError{http.StatusForbidden, "quotaExceeded",
			fmt.Sprintf("Quota 'ROUTES' exceeded.  Limit: %d.0 globally.", g.Faults().Full)}
	case errors.Is(err, cloud.ErrDenied):
		return gceDenied("compute.routes.list", "projects/"+g.project())
	}
	return gceError{http.StatusServiceUnavailable, "backendError", "Internal error. Please try again or contact Google Support."}
}

func gceDenied(permission, object string) gceError {
	return gceError{http.StatusForbidden, "forbidden", fmt.Sprintf("Required '%s' permission for '%s'", permission, object)}
}

func gceNotFound(path string) gceError {
	return gceError{http.StatusNotFound, "notFound", fmt.Sprintf("The resource '%s' was not found", path)}
}

func gceInvalid(format string, args ...any) gceError {
	return gceError{http.StatusBadRequest, "invalid", fmt.Sprintf(format, args...)}
}

// permit returns an error if the caller lacks a permission.
func (g *gce) permit(object string, permissions ...string) error {
	for _, p := range permissions {
		if slices.Contains(g.Faults().Denied, p) {
			return gceDenied(p, object)
		}
	}
	return nil
}

// gcePermissions returns those that are asked for and not denied.
func (g *gce) permissions(r *http.Request, kind string) (any, error) {
	if err := g.Call("Check"); err != nil {
		return nil, err
	}
	var in struct {
		Permissions []string `json:"permissions"`
	}
	if err := gceBody(r, &in, "permissions"); err != nil {
		return nil, err
	}
	has := []string{}
	for _, p := range in.Permissions {
		if !strings.HasPrefix(p, "compute."+kind+".") {
			return nil, gceInvalid("Permission '%s' is not valid for this resource.", p)
		}
		if !slices.Contains(g.Faults().Denied, p) {
			has = append(has, p)
		}
	}
	return map[string]any{"permissions": has}, nil
}

func (g *gce) testRoute(r *http.Request) (any, error) {
	if err := g.inProject(r); err != nil {
		return nil, err
	}
	if _, ok := g.named(r.PathValue("resource")); !ok {
		return nil, g.noRoute(r.PathValue("resource"))
	}
	return g.permissions(r, "routes")
}

func (g *gce) testInstance(r *http.Request) (any, error) {
	if _, err := g.instance(r, r.PathValue("resource")); err != nil {
		return nil, err
	}
	return g.permissions(r, "instances")
}

// instance returns the NIC of the instance that a request's path names.
func (g *gce) instance(r *http.Request, name string) (NIC, error) {
	project, zone := r.PathValue("project"), r.PathValue("zone")
	nic, ok := g.NIC(func(nic NIC) bool {
		i, err := parseGCEInstance(nic.Instance)
		return err == nil && (i.project == project || gceNumber(i.project) == project) && i.zone == zone && i.name == name
	})
	if !ok {
		return NIC{}, gceNotFound("projects/" + project + "/zones/" + zone + "/instances/" + name)
	}
	return nic, nil
}

func (g *gce) getInstance(r *http.Request) (any, error) {
	if err := g.Call("Check"); err != nil {
		return nil, err
	}
	if err := gceQuery(r); err != nil {
		return nil, err
	}
	nic, err := g.instance(r, r.PathValue("instance"))
	if err != nil {
		return nil, err
	}
	if err := g.permit(nic.Instance, "compute.instances.get"); err != nil {
		return nil, err
	}
	i, err := parseGCEInstance(nic.Instance)
	if err != nil {
		return nil, err
	}
	adapter := map[string]any{"kind": "compute#networkInterface", "name": "nic0", "network": gceURL(g.ID)}
	for _, a := range nic.Addrs {
		if a.Is4() {
			adapter["networkIP"] = a.String()
		} else {
			adapter["ipv6Address"] = a.String()
		}
	}
	return map[string]any{"kind": "compute#instance", "id": gceID(nic.Instance), "name": i.name, "status": "RUNNING",
		"zone": gceURL("projects/" + i.project + "/zones/" + i.zone), "selfLink": gceURL(nic.Instance),
		"canIpForward": nic.Forwards, "networkInterfaces": []any{adapter}}, nil
}

// project returns the network's.
func (g *gce) project() string {
	parts := strings.Split(g.ID, "/")
	if len(parts) != 5 {
		return ""
	}
	return parts[1]
}

// inProject returns an error if a request's path names another project than the network's.
func (g *gce) inProject(r *http.Request) error {
	if p := r.PathValue("project"); p != g.project() && p != gceNumber(g.project()) {
		return gceNotFound("projects/" + p)
	}
	return nil
}

// gceHash is a number for a text.
func gceHash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// gceID returns a resource's unique number.
func gceID(text string) string { return fmt.Sprint(gceHash(text)>>1 | 1) }

// gceNumber returns a project's number.
func gceNumber(project string) string {
	return fmt.Sprint(100_000_000_000 + gceHash(project)%899_999_999_999)
}

// gceURL returns a resource's full name.
func gceURL(path string) string { return "https://www.googleapis.com/compute/v1/" + path }
