package kubeclient

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
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
		err := Explain("get", "nodes", c.err)
		if !errors.Is(err, c.err) || IsTerminal(err) != c.terminal || StatusCode(err) != c.code {
			t.Errorf("%v became %v, terminal %t, status %d; want %t, %d", c.err, err, IsTerminal(err), StatusCode(err), c.terminal, c.code)
		}
		if again := Explain("list", "pods", err); c.terminal && again.Error() != err.Error() {
			t.Errorf("it is explained twice: %v", again)
		}
	}
	if err := Explain("get", "nodes", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// TestClient: what every client gets, and what a configuration decides.
func TestClient(t *testing.T) {
	const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
	t.Setenv(idle, "")
	t.Setenv(ping, "7")
	c, err := New(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(idle) != "10" || os.Getenv(ping) != "7" {
		t.Errorf("idle connections are checked after %q s, for %q s; want 10 and the operator's 7", os.Getenv(idle), os.Getenv(ping))
	}
	burst := 0
	limit := limiter(t, c)
	for ; limit.TryAccept(); burst++ {
		if burst > 1000 {
			t.Fatal("calls are not limited")
		}
	}
	if qps := limit.QPS(); burst != 20 || qps != 5 {
		t.Errorf("%d calls at once and %g a second, want 20 and 5", burst, qps)
	}
	if c, err = New(&rest.Config{Host: "http://127.0.0.1:1", QPS: 50, Burst: 100}); err != nil || limiter(t, c).QPS() != 50 {
		t.Errorf("50 calls a second are not allowed, %v", err)
	}
	for _, bad := range []*rest.Config{
		{Host: "http://[", QPS: 1}, {Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAFile: "/nonexistent"}},
	} {
		if c, err := New(bad); err == nil || c != nil || !strings.Contains(err.Error(), "make a client for the API server") {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

func limiter(t *testing.T, c *Client) flowcontrol.RateLimiter {
	t.Helper()
	r, err := c.REST(schema.GroupVersion{Version: "v1"}, func(*rest.Config) {})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetRateLimiter()
}

// TestClientIsSilent: client-go writes nothing to stderr.
func TestClientIsSilent(t *testing.T) {
	if _, err := New(&rest.Config{Host: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = w
	klog.ErrorS(nil, "from client-go")
	klog.Flush()
	os.Stderr = old
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
		t.Errorf("written was %q, %v", text, err)
	}
}

// TestConfig: where the API server is, and who may prove what.
func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(user string) {
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]\n" +
			"users: [{name: u, user: {" + user + "}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exec := "exec: {apiVersion: client.authentication.k8s.io/v1, command: 'true', interactiveMode: Never}"
	plugin := "auth-provider: {name: gcp}"
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct {
		user, host, err string
		o               Server
	}{
		{"token: t", "https://192.0.2.1", "", Server{Kubeconfig: path}},
		{"token: t", "https://192.0.2.2", "", Server{Kubeconfig: path, URL: "https://192.0.2.2"}},
		{"token: t", "https://192.0.2.2", "", Server{URL: "https://192.0.2.2"}},
		{"token: t", "https://192.0.2.1", "", Server{Kubeconfig: path, NoCommands: true}},
		{exec, "https://192.0.2.1", "", Server{Kubeconfig: path}},
		{exec, "", ErrCommand.Error(), Server{Kubeconfig: path, NoCommands: true}},
		{plugin, "", ErrCommand.Error(), Server{Kubeconfig: path, NoCommands: true}},
		{"token: t", "", "read the pod's service account", Server{}},
		{"token: t", "", "read kubeconfig", Server{Kubeconfig: "/nonexistent"}},
	} {
		write(c.user)
		cfg, err := c.o.Config()
		if c.err == "" && (err != nil || cfg.Host != c.host) || c.err != "" && (err == nil || cfg != nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s with %+v: got %v, %v; want %q, %q", c.user, c.o, cfg, err, c.host, c.err)
		}
	}
}

// TestNamespace: where Lease objects are, in a pod and outside of one.
func TestNamespace(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "elsewhere")
	if got := Namespace(); got != "elsewhere" {
		t.Errorf("got %q", got)
	}
	t.Setenv("POD_NAMESPACE", "")
	if got := Namespace(); got != "kube-twill" {
		t.Errorf("outside of a pod: got %q", got)
	}
}
