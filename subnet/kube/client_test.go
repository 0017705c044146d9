package kube

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/twill-net/twill/subnet"
)

// TestExplain: what waiting does not mend is terminal, and an error that is explained already stays as it is.
func TestExplain(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, c := range []struct {
		err      error
		terminal bool
		code     int
	}{
		{apierrors.NewForbidden(nodes, "n", nil), true, 403},
		{apierrors.NewUnauthorized("who"), true, 401},
		{apierrors.NewNotFound(nodes, "n"), true, 404},
		{apierrors.NewBadRequest("what"), true, 400},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n", nil), true, 422},
		{apierrors.NewConflict(nodes, "n", errors.New("changed")), false, 409},
		{apierrors.NewServiceUnavailable("later"), false, 503},
		{errors.New("connection refused"), false, 0},
	} {
		err := explain("get", "nodes", c.err)
		if !errors.Is(err, c.err) || isTerminal(err) != c.terminal || StatusCode(err) != c.code {
			t.Errorf("%v became %v, terminal %t, status %d; want %t, %d", c.err, err, isTerminal(err), StatusCode(err), c.terminal, c.code)
		}
		if again := explain("list", "pods", err); c.terminal && again.Error() != err.Error() {
			t.Errorf("it is explained twice: %v", again)
		}
	}
	if err := explain("get", "nodes", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// TestClient: what every client gets, and what a configuration decides.
func TestClient(t *testing.T) {
	const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
	t.Setenv(idle, "")
	t.Setenv(ping, "7")
	c, err := newClient(&rest.Config{Host: "http://127.0.0.1:1"})
	must(t, err)
	if os.Getenv(idle) != "10" || os.Getenv(ping) != "7" {
		t.Errorf("idle connections are checked after %q s, for %q s; want 10 and the operator's 7", os.Getenv(idle), os.Getenv(ping))
	}
	burst := 0
	for limit := c.rest.GetRateLimiter(); limit.TryAccept(); burst++ {
		if burst > 1000 {
			t.Fatal("calls are not limited")
		}
	}
	if qps := c.rest.GetRateLimiter().QPS(); burst != 20 || qps != 5 {
		t.Errorf("%d calls at once and %g a second, want 20 and 5", burst, qps)
	}
	if c, err = newClient(&rest.Config{Host: "http://127.0.0.1:1", QPS: 50, Burst: 100}); err != nil || c.rest.GetRateLimiter().QPS() != 50 {
		t.Errorf("of 50 calls a second became %g, %v", c.rest.GetRateLimiter().QPS(), err)
	}
	for _, bad := range []*rest.Config{
		{Host: "http://[", QPS: 1}, {Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAFile: "/nonexistent"}},
	} {
		if c, err := newClient(bad); err == nil || c != nil || !strings.Contains(err.Error(), "make a client for the API server") {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

// TestClientHeader: the API server sees who asks, and that it need not compress: that costs it a second for a list of
// thousands of Nodes.
func TestClientHeader(t *testing.T) {
	asked := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header }))
	defer server.Close()
	c, err := newClient(&rest.Config{Host: server.URL})
	must(t, err)
	_, _ = c.node(t.Context(), self)
	if h := <-asked; h.Get("User-Agent") != "twilld" || strings.Contains(h.Get("Accept-Encoding"), "gzip") {
		t.Errorf("the request has the header %v", h)
	}
}

// TestClientIsSilent: client-go writes nothing to stderr.
func TestClientIsSilent(t *testing.T) {
	if _, err := newClient(&rest.Config{Host: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	old := os.Stderr
	os.Stderr = w
	klog.ErrorS(nil, "from client-go")
	klog.Flush()
	os.Stderr = old
	must(t, w.Close())
	if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
		t.Errorf("written was %q, %v", text, err)
	}
}

// answers lets a store have one answer to all its requests, and counts them.
type answers struct {
	status int
	header http.Header
	body   string
	calls  int
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.calls++
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

// TestAnswers: an answer that cannot be read is an error and no empty Node, and client-go repeats no call behind the
// store's back.
func TestAnswers(t *testing.T) {
	json := http.Header{"Content-Type": {"application/json"}}
	later := http.Header{"Content-Type": {"text/plain"}, "Retry-After": {"0"}}
	for _, c := range []struct {
		answers
		want string
	}{
		{answers{status: 200, header: json, body: "{"}, "decode the answer: "},
		{answers{status: 200, header: json, body: `{"spec":{"podCIDRs":7}}`}, "decode the answer: "},
		{answers{status: 429, header: later, body: "later"}, "too many requests"},
		{answers{status: 200, header: json, body: `{"spec":{"podCIDR":"10.244.7.0/24"}}`}, ""},
	} {
		s, err := New(t.Context(), Options{APIURL: "http://127.0.0.1:1", Node: self, Pools: []subnet.Pool{pool4}})
		must(t, err)
		s.api.http.Transport = &c.answers
		n, err := s.api.node(t.Context(), self)
		if c.want == "" && (err != nil || n.Spec.PodCIDR != "10.244.7.0/24") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d %q: got %v, want %q", c.status, c.body, err, c.want)
		}
		if c.calls != 1 {
			t.Errorf("%d %q: asked %d times, want once", c.status, c.body, c.calls)
		}
		if _, err := s.api.nodes(t.Context(), nil); err == nil || c.calls != 2 {
			t.Errorf("%d %q is a list after %d calls", c.status, c.body, c.calls-1)
		}
	}
}

// TestOptions: where the API server is, and who may prove what.
func TestOptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(user string) {
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]\n" +
			"users: [{name: u, user: {" + user + "}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	exec := "exec: {apiVersion: client.authentication.k8s.io/v1, command: 'true', interactiveMode: Never}"
	plugin := "auth-provider: {name: gcp}"
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct {
		user, host, err string
		o               Options
	}{
		{"token: t", "https://192.0.2.1", "", Options{Kubeconfig: path}},
		{"token: t", "https://192.0.2.2", "", Options{Kubeconfig: path, APIURL: "https://192.0.2.2"}},
		{"token: t", "https://192.0.2.2", "", Options{APIURL: "https://192.0.2.2"}},
		{"token: t", "https://192.0.2.1", "", Options{Kubeconfig: path, NoCommands: true}},
		{exec, "https://192.0.2.1", "", Options{Kubeconfig: path}},
		{exec, "", ErrCommand.Error(), Options{Kubeconfig: path, NoCommands: true}},
		{plugin, "", ErrCommand.Error(), Options{Kubeconfig: path, NoCommands: true}},
		{"token: t", "", "read the pod's service account", Options{}},
		{"token: t", "", "read kubeconfig", Options{Kubeconfig: "/nonexistent"}},
	} {
		write(c.user)
		cfg, err := restConfig(c.o)
		if c.err == "" && (err != nil || cfg.Host != c.host) || c.err != "" && (err == nil || cfg != nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s with %+v: got %v, %v; want %q, %q", c.user, c.o, cfg, err, c.host, c.err)
		}
		c.o.Node, c.o.Pools = self, []subnet.Pool{pool4}
		if c.err != "" {
			_, err := New(t.Context(), c.o)
			wantError(t, err, c.err)
		}
	}
	_, err := New(t.Context(), Options{APIURL: "http://[", Node: self, Pools: []subnet.Pool{pool4}})
	wantError(t, err, "http://[")
	t.Setenv("NODE_NAME", "")
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "default")
	_, err = New(t.Context(), Options{APIURL: "http://127.0.0.1:1", Pools: []subnet.Pool{pool4}})
	wantError(t, err, "no node name: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
}
