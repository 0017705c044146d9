//go:build gcemock

package mock

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	provider "github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/filter"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/gce"
)

const routes = "/compute/v1/projects/{project}/global/routes"

// front serves the mock's routes by the compute API; machines and metadata are the fake's.
func front(mock *provider.MockRoutes, others http.Handler) http.Handler {
	done := func(name string) *compute.Operation {
		return &compute.Operation{Name: "operation-" + name, Status: "DONE"}
	}
	mux := http.NewServeMux()
	mux.Handle("/", others)
	handle := func(pattern string, f func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			result, err := f(r)
			if e := (*googleapi.Error)(nil); errors.As(err, &e) {
				w.WriteHeader(e.Code)
				reason := map[int]string{http.StatusConflict: "alreadyExists", http.StatusNotFound: "notFound"}[e.Code]
				result = map[string]any{"error": map[string]any{"code": e.Code, "message": e.Message, "errors": []map[string]string{{"reason": reason}}}}
			} else if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(w).Encode(result)
		})
	}
	handle("GET "+routes, func(r *http.Request) (any, error) {
		field, text, _ := strings.Cut(r.FormValue("filter"), " eq ")
		literal, err := strconv.Unquote(text)
		if err != nil {
			return nil, err
		}
		all, err := mock.List(r.Context(), filter.Regexp(field, literal))
		return &compute.RouteList{Items: all}, err
	})
	handle("GET "+routes+"/{route}", func(r *http.Request) (any, error) {
		return mock.Get(r.Context(), meta.GlobalKey(r.PathValue("route")))
	})
	handle("POST "+routes, func(r *http.Request) (any, error) {
		var route compute.Route
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&route); err != nil {
			return nil, err
		}
		return done(route.Name), mock.Insert(r.Context(), meta.GlobalKey(route.Name), &route)
	})
	handle("DELETE "+routes+"/{route}", func(r *http.Request) (any, error) {
		return done(r.PathValue("route")), mock.Delete(r.Context(), meta.GlobalKey(r.PathValue("route")))
	})
	return mux
}

// TestMockRoutes: the client passes the suite with the mock's routes.
func TestMockRoutes(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.World {
		const project = "twill-test"
		n := &fake.Network{ID: "projects/" + project + "/global/networks/prod"}
		mock := provider.NewMockRoutes(&provider.SingleProjectRouter{ID: project}, map[meta.Key]*provider.MockRoutesObj{})
		w := cloudtest.World{Six: true}
		for i, name := range []string{"node-a", "node-b"} {
			id := "projects/" + project + "/zones/europe-west1-b/instances/" + name
			nic := fake.NIC{ID: id, Instance: id, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, byte(i + 2)})}}
			n.AddNIC(nic)
			s := httptest.NewServer(front(mock, fake.GCE(n, fake.GCEOptions{Caller: func(*http.Request) (fake.NIC, bool) { return nic, true }})))
			t.Cleanup(s.Close)
			t.Setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", s.URL+"/compute/v1/")
			t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(s.URL, "http://"))
			c, err := gce.New(cloud.Options{})
			if err != nil {
				t.Fatal(err)
			}
			w.Nodes[i], w.Local[i] = c, nic.Addrs
		}
		return w
	})
}
