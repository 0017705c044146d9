package gce_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/gce"
)

const (
	token   = "ya29.very-secret" // that of the metadata service below
	account = "instance/service-accounts/default/"
)

// entries are a machine's metadata.
var entries = map[string]string{
	"project/project-id": "host-1", "project/numeric-project-id": "123456789012", "instance/name": "node-a",
	"instance/zone": "projects/123456789012/zones/europe-west1-b", account + "email": "1-compute@developer.gserviceaccount.com",
	account + "scopes": "https://www.googleapis.com/auth/cloud-platform\n",
	account + "token":  `{"access_token":"` + token + `","expires_in":3599,"token_type":"Bearer"}`,
	"instance/network-interfaces/": `[{"ip":"10.128.0.2","ipv6s":["fd20:1:0:0:0:0:0:2"],"mac":"42:01:0a:80:00:02",` +
		`"network":"projects/123456789012/networks/prod"}]`,
}

// serve starts a server for a test.
func serve(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

// metadata serves entries, of which some are others.
func metadata(t *testing.T, others map[string]string) {
	t.Helper()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/")
		text, ok := others[path]
		if !ok {
			text, ok = entries[path]
		}
		w.Header().Set("Metadata-Flavor", "Google")
		if !ok || r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	})
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(url, "http://"))
}

// against returns the API as one server answers it, whatever is asked.
func against(t *testing.T, f http.HandlerFunc) cloud.Cloud {
	t.Helper()
	metadata(t, nil)
	t.Setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", serve(t, f)+"/compute/v1")
	c, err := gce.New(cloud.Options{Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var (
	me = cloud.Self{Target: "projects/host-1/zones/europe-west1-b/instances/node-a", Network: "projects/host-1/global/networks/prod"}
	r1 = cloud.Route{Dst: prefix("10.244.1.0/24"), Target: me.Target}
)

// refuse answers all but the methods before the one that is tested with an error.
func refuse(status int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/routes") && strings.Contains(r.URL.RawQuery, "destRange") {
			_, _ = w.Write([]byte(`{}`)) // Create looks whether there is a route
			return
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"code":%d,"message":"It says\nso for %s.","errors":[{"reason":%q}]}}`, status, token, reason)
	}
}

// TestClasses: each documented error is of its class, and its text is the API's, in one line, without the token.
func TestClasses(t *testing.T) {
	for _, test := range []struct {
		status  int
		reason  string
		list    error
		create  error
		replace error
		remove  error
	}{
		{403, "rateLimitExceeded", cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled},
		{403, "userRateLimitExceeded", cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled},
		{429, "", cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled},
		{429, "RATE_LIMIT_EXCEEDED", cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled, cloud.ErrThrottled},
		{403, "quotaExceeded", cloud.ErrThrottled, cloud.ErrFull, cloud.ErrThrottled, cloud.ErrThrottled},
		{403, "forbidden", cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied},
		{403, "insufficientPermissions", cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied},
		{403, "accessNotConfigured", cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied},
		{401, "authError", cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied, cloud.ErrDenied},
		{400, "resourceNotReady", cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy},
		{400, "resourceInUseByAnotherResource", cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy},
		{409, "alreadyExists", cloud.ErrExists, cloud.ErrExists, cloud.ErrExists, cloud.ErrExists},
		{412, "conditionNotMet", cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy, cloud.ErrBusy},
		{404, "notFound", nil, nil, nil, cloud.ErrGone},
		{400, "invalid", nil, nil, nil, nil},
		{503, "backendError", nil, nil, nil, nil},
	} {
		c := against(t, refuse(test.status, test.reason))
		_, list := c.List(t.Context(), me)
		there := r1
		there.Name = "flannel-10-244-1-0-24"
		for call, got := range map[string]struct{ err, class error }{
			"List":    {list, test.list},
			"Create":  {c.Apply(t.Context(), me, cloud.Change{Op: cloud.Create, Route: r1}), test.create},
			"Replace": {c.Apply(t.Context(), me, cloud.Change{Op: cloud.Replace, Route: r1, Old: there}), test.replace},
			"Delete":  {c.Apply(t.Context(), me, cloud.Change{Op: cloud.Delete, Route: there}), test.remove},
		} {
			if is := classes(got.err); got.err == nil || is != fmt.Sprint(got.class) {
				t.Errorf("%d %s: %s: %v: class %s, want %v", test.status, test.reason, call, got.err, is, got.class)
				continue
			}
			tidy(t, got.err.Error())
			if !strings.Contains(got.err.Error(), "It says so") {
				t.Errorf("%d %s: %s: %v does not say what the API says", test.status, test.reason, call, got.err)
			}
		}
	}
}

// classes names the class of an error.
func classes(err error) string {
	for _, class := range []error{cloud.ErrThrottled, cloud.ErrBusy, cloud.ErrFull, cloud.ErrDenied, cloud.ErrExists, cloud.ErrGone} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return "<nil>"
}

// tidy fails if a text is not one line, is long, or has a secret.
func tidy(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\n\r\x1b") || len(text) > 1000 {
		t.Errorf("not one short line: %q", text)
	}
	for _, secret := range []string{token, "PRIVATE KEY", "MIIE"} {
		if strings.Contains(text, secret) {
			t.Errorf("it has a secret: %q", text)
		}
	}
}

// TestOperations: a change that was taken can fail later.
func TestOperations(t *testing.T) {
	for code, class := range map[string]error{
		"QUOTA_EXCEEDED": cloud.ErrFull, "RESOURCE_ALREADY_EXISTS": cloud.ErrExists, "RESOURCE_NOT_READY": cloud.ErrBusy,
		"RATE_LIMIT_EXCEEDED": cloud.ErrThrottled, "RESOURCE_OPERATION_RATE_EXCEEDED": cloud.ErrThrottled, "PERMISSIONS_ERROR": cloud.ErrDenied,
		"RESOURCE_NOT_FOUND": nil, "INTERNAL_ERROR": nil,
	} {
		waits := 0
		c := against(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodGet:
				_, _ = w.Write([]byte(`{}`))
			case strings.HasSuffix(r.URL.Path, "/wait"):
				if waits++; waits == 1 && code == "QUOTA_EXCEEDED" { // the API's wait may return early
					_, _ = w.Write([]byte(`{"name":"operation-1","status":"RUNNING"}`))
					return
				}
				_, _ = fmt.Fprintf(w, `{"name":"operation-1","status":"DONE","error":{"errors":[{"code":%q,"message":"It says\nso."}]}}`, code)
			default:
				_, _ = w.Write([]byte(`{"name":"operation-1","status":"PENDING"}`))
			}
		})
		err := c.Apply(t.Context(), me, cloud.Change{Op: cloud.Create, Route: r1})
		if err == nil || classes(err) != fmt.Sprint(class) || !strings.Contains(err.Error(), "operation-1") {
			t.Errorf("%s: %v, want %v", code, err, class)
			continue
		}
		tidy(t, err.Error())
	}
}

// TestHostile: whatever a server answers is one clear sentence.
func TestHostile(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			_, _ = w.Write([]byte("<html>\n" + token))
		},
		"empty":     func(http.ResponseWriter, *http.Request) {},
		"truncated": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"items":[{"name":"a`)) },
		"no JSON":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(token)) },
		"a list":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[1,2]`)) },
		"types": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"items":"x","status":7,"name":[]}`))
		},
		"large": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", 10<<20) + "{}"))
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"closes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("{"))
		},
		"no prefix": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"name":"\u001b[2J","items":[{"name":"\u001b[2J","network":"x/prod","destRange":"\u001b[2J\n"}],"destRange":"x"}`))
		},
		"no end": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"nextPageToken":"same"}`)) },
		"partial": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"warning":{"code":"UNREACHABLE","message":"no\nzone"}}`))
		},
	} {
		c := against(t, answer)
		_, list := c.List(t.Context(), me)
		_, check := c.Check(t.Context(), me)
		for call, err := range map[string]error{
			"List": list, "Check": check, "Create": c.Apply(t.Context(), me, cloud.Change{Op: cloud.Create, Route: r1}),
			"Delete": c.Apply(t.Context(), me, cloud.Change{Op: cloud.Delete, Route: r1}),
		} {
			if err == nil {
				t.Errorf("%s: %s: no error", name, call)
				continue
			}
			if c := classes(err); c != "<nil>" {
				t.Errorf("%s: %s: %v is of class %s", name, call, err, c)
			}
			tidy(t, err.Error())
		}
	}
}

// TestMetadata: what the metadata says wrong is one clear sentence, as is a service that is no metadata service.
func TestMetadata(t *testing.T) {
	for name, others := range map[string]map[string]string{
		"no list":    {"instance/network-interfaces/": "<html>"},
		"no network": {"instance/network-interfaces/": `[{"ip":"10.128.0.2","network":"projects/../networks/\u001b"}]`},
		"a zone":     {"instance/zone": "projects/1/zones/.."},
		"a name":     {"instance/name": "a b\n"},
		"empty":      {"project/project-id": ""},
		"large":      {"instance/network-interfaces/": strings.Repeat(" ", 2<<20)},
	} {
		metadata(t, others)
		c, err := gce.New(cloud.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if self, err := c.Self(t.Context(), machines(false)[0].Addrs); err == nil {
			t.Errorf("%s: got %+v", name, self)
		} else {
			tidy(t, err.Error())
		}
	}
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(url, "http://"))
	c, err := gce.New(cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Self(t.Context(), machines(false)[0].Addrs); err == nil || !strings.Contains(err.Error(), "not Google's metadata service") {
		t.Errorf("another service: %v", err)
	}
}

// TestOptions: what GCE does not have is refused, without the secret.
func TestOptions(t *testing.T) {
	for _, o := range []cloud.Options{{Tables: []string{"rtb-1"}}, {KeyID: "id"}, {KeySecret: cloud.NewSecret(token)}} {
		if _, err := gce.New(o); err == nil {
			t.Errorf("%v: no error", o)
		} else {
			tidy(t, err.Error())
		}
	}
}

// TestNotThere: an API that cannot be reached, or does not answer, ends with the context.
func TestNotThere(t *testing.T) {
	c := against(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.List(ctx, me); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it does not answer: %v", err)
	}
	t.Setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:9/")
	c, err := gce.New(cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(t.Context(), me); err == nil || !strings.Contains(err.Error(), "127.0.0.1:9") {
		t.Errorf("it is not there: %v", err)
	}
}

// TestKeyFile: a service account's key file is used in place of the machine's account, and never shown.
func TestKeyFile(t *testing.T) {
	n := &fake.Network{ID: "projects/host-1/global/networks/prod"}
	front := fake.GCE(n, fake.GCEOptions{})
	asked := ""
	against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			asked = r.FormValue("assertion")
			_, _ = w.Write([]byte(`{"access_token":"` + fake.GCEToken + `","expires_in":3600,"token_type":"Bearer"}`))
			return
		}
		front.ServeHTTP(w, r)
	})
	path := t.TempDir() + "/key.json"
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
	api := strings.TrimSuffix(os.Getenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"), "/compute/v1")
	for text, want := range map[string]string{
		"":                              "is not JSON",
		"PRIVATE KEY MIIE":              "is not JSON",
		`{"type":"authorized_user"}`:    `its type is "authorized_user"`,
		keyFile(t, api+"/token", false): "private key",
		keyFile(t, api+"/x", true):      "401",
		keyFile(t, api+"/token", true):  "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := gce.New(cloud.Options{})
		if err == nil {
			_, err = c.List(t.Context(), me)
		}
		switch {
		case want == "" && (err != nil || strings.Count(asked, ".") != 2):
			t.Errorf("a good key: %v, assertion %q", err, asked)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40s: %v, want %q", text, err, want)
		case err != nil:
			tidy(t, err.Error())
		}
	}
}
