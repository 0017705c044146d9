package kube

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/subnet"
)

// TestClientHeader: the API server sees who asks, and that it need not compress: that costs it a second for a list of
// thousands of Nodes.
func TestClientHeader(t *testing.T) {
	asked := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header }))
	defer server.Close()
	shared, err := kubeclient.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(shared)
	must(t, err)
	_, _ = c.node(t.Context(), self)
	if h := <-asked; h.Get("User-Agent") != "twilld" || strings.Contains(h.Get("Accept-Encoding"), "gzip") {
		t.Errorf("the request has the header %v", h)
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
		s.api.HTTP.Transport = &c.answers
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

// TestOptions: where the API server is, and what this node is called.
func TestOptions(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	pools := []subnet.Pool{pool4}
	for _, c := range []struct {
		o   Options
		err string
	}{
		{Options{Node: self, Pools: pools}, "read the pod's service account"},
		{Options{Kubeconfig: "/nonexistent", Node: self, Pools: pools}, "read kubeconfig"},
		{Options{APIURL: "http://[", Node: self, Pools: pools}, "http://["},
	} {
		_, err := New(t.Context(), c.o)
		wantError(t, err, c.err)
	}
	t.Setenv("NODE_NAME", "")
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "default")
	_, err := New(t.Context(), Options{APIURL: "http://127.0.0.1:1", Pools: pools})
	wantError(t, err, "no node name: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
}
