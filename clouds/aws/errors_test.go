package aws_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

const (
	keyID  = "AKIAEXAMPLE0000TEST0"
	secret = "w+ecret/of/the+tests/0123456789abcdefgh"
	token  = "session+token/of/the/tests=="
)

// plain fails the test if a text is not one line without secrets.
func plain(t *testing.T, text string) {
	t.Helper()
	for _, s := range []string{secret, token, "x1Y2x1Y2"} {
		if strings.Contains(text, s) {
			t.Errorf("there is a secret in %q", text)
		}
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || len(text) > 1000 || text == "" {
		t.Errorf("%d characters, want one short line: %.2000q", len(text), text)
	}
}

// against returns the API with EC2 played by a handler, and what it is then asked: reads and writes.
func against(t *testing.T, api http.HandlerFunc) map[string]func() error {
	t.Helper()
	clean(t)
	t.Setenv("AWS_ACCESS_KEY_ID", keyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SECURITY_TOKEN", token)
	c := open(t, front(t, network(), "eni-1", fake.AWSOptions{}), serve(t, api), cloud.Options{Tables: []string{"rtb-1"}})
	s := self(t, c)
	r := cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: s.Target}
	return map[string]func() error{
		"List":    func() error { _, err := c.List(t.Context(), s); return err },
		"Create":  func() error { return c.Apply(t.Context(), s, cloud.Change{Op: cloud.Create, Route: r}) },
		"Replace": func() error { return c.Apply(t.Context(), s, cloud.Change{Op: cloud.Replace, Route: r, Old: r}) },
		"Delete":  func() error { return c.Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: r}) },
		"Check":   func() error { _, err := c.Check(t.Context(), s); return err },
	}
}

func problem(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w,
		`<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error>`+
			`</Errors><RequestID>0a1b2c3d-request</RequestID></Response>`, code, message)
}

// TestClasses: each error code is of its class, with Amazon's own words, and is not tried again.
func TestClasses(t *testing.T) {
	for _, test := range []struct {
		status        int
		code, message string
		class         error
	}{
		{503, "RequestLimitExceeded", "Request limit exceeded.", cloud.ErrThrottled},
		{400, "Throttling", "Rate exceeded", cloud.ErrThrottled},
		{503, "EC2ThrottledException", "Slow down.", cloud.ErrThrottled},
		{400, "IncorrectState", "It is in an incorrect state.", cloud.ErrBusy},
		{400, "RouteLimitExceeded", "The maximum number of routes has been reached.", cloud.ErrFull},
		{400, "RouteAlreadyExists", "The route identified by 10.244.1.0/24 already exists.", cloud.ErrExists},
		{400, "InvalidRoute.NotFound", "no route with destination-cidr-block 10.244.1.0/24", cloud.ErrGone},
		{400, "InvalidParameterValue",
			"There is no route defined for '10.244.1.0/24' in the route table. Use CreateRoute instead.", cloud.ErrGone},
		{403, "UnauthorizedOperation", "You are not authorized. Encoded authorization failure message: x1Y2x1Y2",
			cloud.ErrDenied},
		{401, "AuthFailure", "AWS was not able to validate the provided access credentials", cloud.ErrDenied},
		{400, "InvalidParameterValue", "Something else.", nil},
		{400, "InvalidRouteTableID.NotFound", "The routeTable ID 'rtb-1' does not exist", nil},
		{500, "InternalError", "An internal error has occurred", nil},
		{400, "Code<br/>", "not XML <<", nil},
	} {
		t.Run(test.code, func(t *testing.T) {
			var requests atomic.Int64
			calls := against(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				problem(w, test.status, test.code, test.message)
			})
			for name, call := range calls {
				requests.Store(0)
				err := call()
				if name == "Check" {
					continue // may report instead
				}
				if err == nil {
					t.Fatalf("%s: no error", name)
				}
				plain(t, err.Error())
				for _, class := range []error{cloud.ErrThrottled, cloud.ErrBusy, cloud.ErrFull, cloud.ErrDenied, cloud.ErrExists,
					cloud.ErrGone} {
					if errors.Is(err, class) != (class == test.class) {
						t.Errorf("%s: %v: is %v: %t", name, err, class, errors.Is(err, class))
					}
				}
				words, _, _ := strings.Cut(test.message, " Encoded")
				if !strings.Contains(test.code, "<") &&
					(!strings.Contains(err.Error(), test.code+": "+words) || !strings.Contains(err.Error(), "0a1b2c3d-request")) {
					t.Errorf("%s: %v: want %q and the request", name, err, words)
				}
				if n := requests.Load(); n != 1 {
					t.Errorf("%s: %d requests, want one", name, n)
				}
			}
		})
	}
}

// TestNonsense: answers that are not EC2's are errors of one sentence, of reads and of writes.
func TestNonsense(t *testing.T) {
	body := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else the client may meet a closed connection before the answer's end
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, text)
		}
	}
	table := `<DescribeRouteTablesResponse><routeTableSet><item><routeTableId>rtb-1</routeTableId><vpcId>%s</vpcId><routeSet><item>` +
		`<destinationCidrBlock>%s</destinationCidrBlock></item></routeSet></item></routeTableSet>%s</DescribeRouteTablesResponse>`
	var leaked atomic.Int64
	elsewhere := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Add(1) }))
	for name, test := range map[string]struct {
		api  http.HandlerFunc
		only string // the call that it is wrong for
		say  string
	}{
		"HTML 502": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html><body>Bad Gateway</body></html>")
		}, "", "502"},
		"empty 503": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "",
			"503"},
		"HTML 200":    {body("text/html", "<html>Please log in</html>"), "", "text/html"},
		"JSON 200":    {body("application/json", "{}"), "", "application/json"},
		"empty 200":   {body("text/xml", ""), "", "empty"},
		"truncated":   {body("text/xml", table[:120]), "List", "EOF"},
		"other XML":   {body("text/xml", "<a><b/></a>"), "List", "rtb-1"},
		"other, made": {body("text/xml", "<a><b/></a>"), "Create", "does not say"},
		"not made": {body("text/xml", "<CreateRouteResponse><return>false</return></CreateRouteResponse>"), "Create",
			"does not say"},
		"10 MB":       {body("text/xml", "<a>"+strings.Repeat("<b/>", 10<<18)), "List", "MiB"},
		"a long text": {body("text/xml", "<a>"+strings.Repeat("x", 10<<20)), "List", "MiB"},
		"no CIDR":     {body("text/xml", fmt.Sprintf(table, "vpc-1", "ten&#10;dot", "")), "List", "CIDR"},
		"no ID":       {body("text/xml", strings.Replace(table, "rtb-1", "rtb-1'; reboot", 1)), "List", "no ID"},
		"another VPC": {body("text/xml", fmt.Sprintf(table, "vpc-&#9;2", "10.0.0.0/8", "")), "List", "this node is in vpc-1"},
		"endless": {body("text/xml", fmt.Sprintf(table, "vpc-1", "10.0.0.0/8", "<nextToken>x</nextToken>")), "List",
			"pages"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}, "", "redirects"},
		"closed": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		}, "", "EOF"},
		"control": {func(w http.ResponseWriter, _ *http.Request) {
			problem(w, 400, "Oh", "a&#10;b&#9;c"+strings.Repeat("long ", 1000))
		}, "", "a b c"},
	} {
		t.Run(name, func(t *testing.T) {
			for call, f := range against(t, test.api) {
				if test.only != "" && call != test.only {
					continue
				}
				err := f()
				if err == nil {
					t.Errorf("%s: no error", call)
					continue
				}
				plain(t, err.Error())
				if !strings.Contains(err.Error(), test.say) {
					t.Errorf("%s: %v: want %q", call, err, test.say)
				}
			}
		})
	}
	if leaked.Load() != 0 {
		t.Error("a signed request was sent to where a redirect led")
	}
}

// TestSlow: an answer that does not come ends with the context.
func TestSlow(t *testing.T) {
	clean(t)
	n := network()
	slow := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	for name, c := range map[string]cloud.Cloud{
		"API":      open(t, front(t, n, "eni-1", fake.AWSOptions{}), slow, cloud.Options{}),
		"metadata": open(t, slow, slow, cloud.Options{}),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := c.Self(ctx, local)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSecrets: a server that repeats what it was sent does not make the client print it.
func TestSecrets(t *testing.T) {
	for name, f := range against(t, func(w http.ResponseWriter, r *http.Request) {
		problem(w, 403, "SignatureDoesNotMatch", "The canonical string should have been 'x-amz-security-token:"+
			r.Header.Get("X-Amz-Security-Token")+"' by "+secret)
	}) {
		if err := f(); err != nil {
			plain(t, err.Error())
			if !strings.Contains(err.Error(), "(secret)") {
				t.Errorf("%s: the message is not the server's: %v", name, err)
			}
		} else if name != "Check" {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCredentials: they are found where flannel's users put them, and where net-conf.json has them.
func TestCredentials(t *testing.T) {
	for name, test := range map[string]struct {
		env   map[string]string
		o     cloud.Options
		token string
		err   string
	}{
		"environment": {map[string]string{"AWS_ACCESS_KEY_ID": keyID, "AWS_SECRET_ACCESS_KEY": secret},
			cloud.Options{}, "", ""},
		"old names": {map[string]string{"AWS_ACCESS_KEY": keyID, "AWS_SECRET_KEY": secret,
			"AWS_SECURITY_TOKEN": token}, cloud.Options{}, token, ""},
		"security token": {map[string]string{"AWS_ACCESS_KEY_ID": keyID, "AWS_SECRET_ACCESS_KEY": secret,
			"AWS_SECURITY_TOKEN": token}, cloud.Options{}, token, ""},
		"session token": {map[string]string{"AWS_ACCESS_KEY_ID": keyID, "AWS_SECRET_ACCESS_KEY": secret,
			"AWS_SESSION_TOKEN": token}, cloud.Options{}, token, ""},
		"net-conf.json": {nil, cloud.Options{KeyID: keyID, KeySecret: cloud.NewSecret(secret)}, "", ""},
		"a wrong secret": {nil, cloud.Options{KeyID: keyID, KeySecret: cloud.NewSecret("no" + secret)}, "",
			"signature is wrong"},
		"another's key": {nil, cloud.Options{KeyID: "AKIANOBODY", KeySecret: cloud.NewSecret(secret)}, "",
			"nobody has this key"},
		"another's region": {map[string]string{"AWS_REGION": "us-west-2"}, cloud.Options{KeyID: keyID,
			KeySecret: cloud.NewSecret(secret)}, "", "us-west-2"},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			for k, v := range test.env {
				t.Setenv(k, v)
			}
			n := network()
			h := fake.AWS(n, fake.AWSOptions{Keys: map[string]string{keyID: secret},
				Caller: func(*http.Request) (fake.NIC, bool) { return n.NIC(func(n fake.NIC) bool { return n.ID == "eni-1" }) }})
			sent := "none"
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/" {
					sent = r.Header.Get("X-Amz-Security-Token")
				}
				h.ServeHTTP(w, r)
			}))
			_, err := open(t, url, url, test.o).Self(t.Context(), local)
			switch {
			case test.err == "" && (err != nil || sent != test.token):
				t.Errorf("%v, token %q", err, sent)
			case test.err != "" && (!errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), test.err)):
				t.Errorf("%v: want %q", err, test.err)
			}
		})
	}
}

// TestNoRole: an instance without a role is told that it has none.
func TestNoRole(t *testing.T) {
	clean(t)
	n := network()
	h := fake.AWS(n, fake.AWSOptions{Caller: func(*http.Request) (fake.NIC, bool) { return n.NICs()[1], true }})
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/iam/") {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	}))
	_, err := open(t, url, url, cloud.Options{}).Self(t.Context(), local)
	if err == nil || !strings.Contains(err.Error(), "no credentials, neither in the environment nor of a role") {
		t.Errorf("got %v", err)
	}
}

// TestNoRequest: New asks nobody.
func TestNoRequest(t *testing.T) {
	clean(t)
	url := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s", r.Method, r.URL) }))
	open(t, url, url, cloud.Options{})
}

// TestMetadataNonsense: a metadata service that is none is an error of one sentence.
func TestMetadataNonsense(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", "60")
			_, _ = io.WriteString(w, "<html>\nlog in</html>")
		},
		"no token":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not found": http.NotFound,
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		},
		"closed": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		},
		"addresses": entries(map[string]string{"macs/": "02:00:00:00:00:01/", "local-ipv4s": "ten"}),
		"IDs": entries(map[string]string{"macs/": "02:00:00:00:00:01/", "interface-id": "eni-1\x1b[2J",
			"subnet-id": "s", "vpc-id": "v"}),
		"MACs":    entries(map[string]string{"macs/": "../../user-data"}),
		"no MACs": entries(map[string]string{"macs/": ""}),
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			_, err := open(t, serve(t, h), "http://127.0.0.1:1", cloud.Options{}).Self(t.Context(), local)
			if err == nil {
				t.Fatal("no error")
			}
			plain(t, err.Error())
		})
	}
}

// entries serves metadata by the ends of its paths.
func entries(all map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", "60")
		if r.Method == http.MethodPut {
			_, _ = io.WriteString(w, "token")
			return
		}
		for end, text := range all {
			if strings.HasSuffix(r.URL.Path, end) {
				_, _ = io.WriteString(w, text)
				return
			}
		}
		http.NotFound(w, r)
	}
}
