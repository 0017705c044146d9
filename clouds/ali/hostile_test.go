package ali_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/ali"
)

var self = cloud.Self{Target: "i-1", Network: "vpc-1", Tables: []string{"vtb-main"}}

func route(dst, target string) cloud.Route {
	return cloud.Route{Table: "vtb-main", Dst: netip.MustParsePrefix(dst), Target: target}
}

// stub is an API that always answers the same.
func stub(t *testing.T, answer http.HandlerFunc) cloud.Cloud {
	t.Helper()
	noKeys(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/latest/meta-data/region-id", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "cn-hangzhou") })
	mux.HandleFunc("/{$}", answer)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Setenv("VPC_ENDPOINT", server.URL)
	t.Setenv("ECS_ENDPOINT", server.URL)
	api, err := ali.NewAt(withKey, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// methods call each method that asks the API.
func methods(ctx context.Context, api cloud.Cloud) map[string]error {
	_, list := api.List(ctx, self)
	_, check := api.Check(ctx, self)
	one := route("10.244.1.0/24", "i-1")
	return map[string]error{"List": list, "Check": check,
		"Create":  api.Apply(ctx, self, cloud.Change{Op: cloud.Create, Route: one}),
		"Replace": api.Apply(ctx, self, cloud.Change{Op: cloud.Replace, Route: one, Old: route("10.244.1.0/24", "i-2")}),
		"Delete":  api.Apply(ctx, self, cloud.Change{Op: cloud.Delete, Route: one})}
}

// plain fails the test if an error is not one clear line without a secret.
func plain(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	text := err.Error()
	if strings.ContainsAny(text, "\n\r\x1b") || len(text) > 700 {
		t.Errorf("%s: not one line of at most 700 bytes: %q", what, text)
	}
	for _, secret := range []string{keySecret, "lent-secret", "lent-token", "Signature=", "AccessKeyId=", "%26AccessKeyId"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s: %q is in the error: %s", what, secret, text)
		}
	}
}

// TestHostile: whatever answers, one clear sentence comes of it.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	for name, answer := range map[string]http.HandlerFunc{
		"a proxy's page": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>\n<body>502 Bad Gateway</body>\n</html>")
		},
		"a page":           func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>log in, please</html>") },
		"nothing":          func(http.ResponseWriter, *http.Request) {},
		"an empty failure": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"half an object":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"RouteEntrys": {"RouteEntry": [`) },
		"half a body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"RouteEntrys":`)
		},
		"a long body": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"RequestId": %q}`, long) },
		"a long message": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"Code": "Odd", "RequestId": %q, "Message": %q}`, long[:1<<20], strings.Repeat("a\n\x1b[31m", 1<<17))
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		},
		"another type": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"Code": 7, "Message": [1], "RequestId": {}}`)
		},
		"another list": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"RouteEntrys": [], "RequestId": 5, "NextToken": 3, "NetworkInterfaceSets": 1}`)
		},
		"the request": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"Code": "SignatureDoesNotMatch", "Message": "server string to sign is:%s %s"}`, r.URL.RawQuery, keySecret)
		},
		"its signature": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"Code": "%[1]s", "Message": "%[1]s", "RequestId": "%[1]s"}`, keySecret)
		},
		"no end": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	} {
		t.Run(name, func(t *testing.T) {
			for method, err := range methods(t.Context(), stub(t, answer)) {
				if err == nil && (name == "another list" || name == "no end") && method != "List" && method != "Check" && method != "Replace" {
					continue // writes read nothing but whether it is an object
				}
				plain(t, method, err)
			}
		})
	}
}

// TestEndless: a listing whose pages do not end is given up.
func TestEndless(t *testing.T) {
	api := stub(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"NextToken": "more", "RouteEntrys": {"RouteEntry": []}, "TotalCount": 9, "NetworkInterfaceSets": {}}`)
	})
	_, err := api.List(t.Context(), self)
	plain(t, "List", err)
}

// TestAway: nothing answers, or not in time.
func TestAway(t *testing.T) {
	l := newLab(t, fake.AliOptions{})
	api := l.node(t, 0, withKey)
	if _, err := api.Self(t.Context(), l.local[0]); err != nil {
		t.Fatal(err)
	}
	l.network.Break(fake.Faults{Away: true})
	for method, err := range methods(t.Context(), api) {
		plain(t, method, err)
	}
	slow := stub(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for method, err := range methods(ctx, slow) {
		plain(t, method, err)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want %v", method, err, context.DeadlineExceeded)
		}
	}
}

// TestWrongKey: a key that is not known, or with another secret, is a matter of permissions, and is shown nowhere.
func TestWrongKey(t *testing.T) {
	for name, known := range map[string]map[string]string{"unknown": {"other": "x"}, "another secret": {keyID: "other"}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, fake.AliOptions{Keys: known})
			for method, err := range methods(t.Context(), l.node(t, 0, withKey)) {
				plain(t, method, err)
				if !errors.Is(err, cloud.ErrDenied) {
					t.Errorf("%s: %v, want %v", method, err, cloud.ErrDenied)
				}
			}
		})
	}
}

// TestClasses: the documented codes arrive as their classes, from each action.
func TestClasses(t *testing.T) {
	for _, test := range []struct {
		method  string
		status  int
		code    string
		message string
		class   error
	}{
		{"List", 400, "Throttling", "", cloud.ErrThrottled},
		{"List", 400, "Throttling.User", "", cloud.ErrThrottled},
		{"Create", 503, "Throttling.Api", "", cloud.ErrThrottled},
		{"Create", 400, "TaskConflict", "The operation is too frequent, please wait a moment and try again.", cloud.ErrBusy},
		{"Create", 400, "OperationConflict", "", cloud.ErrBusy},
		{"Create", 400, "IncorrectVpcStatus", "", cloud.ErrBusy},
		{"Create", 400, "IncorrectRouteEntryStatus", "", cloud.ErrBusy},
		{"Create", 400, "IncorrectStatus.RouteTableStatus", "", cloud.ErrBusy},
		{"Delete", 400, "IncorrcetRouteEntryStatus", "", cloud.ErrBusy}, // as documented
		{"Delete", 400, "OperationFailed.DistibuteLock", "", cloud.ErrBusy},
		{"Create", 400, "LastTokenProcessing", "", cloud.ErrBusy},
		{"Create", 400, "QuotaExceeded", "Route entry quota exceeded in this route table.", cloud.ErrFull},
		{"Create", 403, "Forbidden.RAM", "", cloud.ErrDenied},
		{"List", 403, "Forbidden", "", cloud.ErrDenied},
		{"List", 403, "NoPermission", "", cloud.ErrDenied},
		{"List", 404, "InvalidAccessKeyId.NotFound", "", cloud.ErrDenied},
		{"List", 400, "InvalidSecurityToken.Malformed", "", cloud.ErrDenied},
		{"List", 400, "InvalidSecurityToken.Expired", "", nil},
		{"Create", 400, "Forbidden.CheckEntryRuleQuota", "", nil},
		{"Create", 400, "InvalidCIDRBlock.Duplicate", "Specified CIDR block is already exists.", cloud.ErrExists},
		{"Create", 400, "RouterEntryConflict.Duplicated", "", cloud.ErrExists},
		{"Create", 400, "InvalidRouteEntry.Duplicate", "", cloud.ErrExists},
		{"Create", 400, "InvalidCidrBlock", "Specified CIDR block is already exists.", cloud.ErrExists},
		{"Create", 400, "InvalidCidrBlock", "Specified CIDR block is not valid.", nil},
		{"Create", 400, "InvalidRouteEntry", "", nil},
		{"Delete", 400, "InvalidRouteEntry.NotFound", "Route entry not exists.", cloud.ErrGone},
		{"Delete", 400, "InvalidRouteEntryId.NotFound", "", cloud.ErrGone},
		{"Delete", 400, "InvalidRouteEntry", "Specified routeEntry not exist.", cloud.ErrGone},
		{"Delete", 404, "InvalidRouteTableId.NotFound", "Specified route table does not exist.", nil},
		{"List", 500, "InternalError", "", nil},
		{"List", 429, "", "", cloud.ErrThrottled},
	} {
		t.Run(test.method+" "+test.code, func(t *testing.T) {
			api := stub(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				if test.code != "" {
					fmt.Fprintf(w, `{"Code": %q, "Message": %q, "RequestId": "0ED8D006"}`, test.code, test.message)
				}
			})
			err := methods(t.Context(), api)[test.method]
			plain(t, test.method, err)
			for _, class := range []error{cloud.ErrThrottled, cloud.ErrBusy, cloud.ErrFull, cloud.ErrDenied, cloud.ErrExists, cloud.ErrGone} {
				if errors.Is(err, class) != errors.Is(test.class, class) {
					t.Errorf("%v: want the class %v", err, test.class)
				}
			}
			for _, word := range []string{test.code, test.message} {
				if !strings.Contains(err.Error(), word) || test.code != "" && !strings.Contains(err.Error(), "0ED8D006") {
					t.Errorf("%v: want the cloud's own %q and the request's ID", err, word)
				}
			}
		})
	}
}

// TestMetadata: what answers instead of the metadata service is said.
func TestMetadata(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("192.168.1.10")}
	for name, answer := range map[string]http.HandlerFunc{
		"a page":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>\n</html>") },
		"nothing":    func(http.ResponseWriter, *http.Request) {},
		"refused":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not found":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"too long":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("a", 1<<20)) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
	} {
		t.Run(name, func(t *testing.T) {
			noKeys(t)
			server := httptest.NewServer(answer)
			t.Cleanup(server.Close)
			api, err := ali.NewAt(cloud.Options{}, server.URL)
			if err != nil {
				t.Fatal(err)
			}
			_, err = api.Self(t.Context(), local)
			plain(t, "Self", err)
			_, err = api.List(t.Context(), self)
			plain(t, "List", err)
		})
	}
}

// TestNoRedirect: a signature is not carried to somebody else.
func TestNoRedirect(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(other.Close)
	api := stub(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	methods(t.Context(), api)
	if asked {
		t.Error("the redirect was followed")
	}
}

// TestDebug: the SDK prints requests if DEBUG is sdk. Nothing of this package's does.
func TestDebug(t *testing.T) {
	t.Setenv("DEBUG", "sdk")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	l := newLab(t, fake.AliOptions{})
	methods(t.Context(), l.node(t, 0, withKey))
	os.Stdout = stdout
	write.Close()
	var text [1]byte
	if n, _ := read.Read(text[:]); n != 0 {
		t.Error("requests are printed")
	}
}
