package controlplane_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
)

const (
	agent   = "twill-agent"
	account = "system:serviceaccount:kube-system:twill"
)

func start(t *testing.T, cfg controlplane.APIServerConfig) *controlplane.APIServer {
	t.Helper()
	s := controlplanetest.Start(t, cfg)
	t.Logf("kube-apiserver ready after %v", s.StartTook().Round(time.Millisecond))
	return s
}

func TestAPIServer(t *testing.T) {
	s := start(t, controlplane.APIServerConfig{
		Progress: func(message string) { t.Log(message) },
		Users: []controlplane.User{
			{Name: agent},
			{Name: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}},
			{Name: "stranger"},
		},
	})
	if err := create(t, client(t, s, controlplane.Admin), "nodes", node); err != nil {
		t.Fatalf("create a node as admin: %v", err)
	}
	for range 2 { // the second time must change nothing
		if err := s.ApplyAgentRBAC(t.Context(), agent, account); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{agent, account} {
		t.Run(user+" has an agent's rights and no more", func(t *testing.T) { checkRights(t, client(t, s, user)) })
	}
	t.Run("a stranger has none", func(t *testing.T) {
		_, err := client(t, s, "stranger").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		wantForbidden(t, "list nodes", err)
	})
	t.Run("secrets are readable by their owner only", func(t *testing.T) { checkModes(t, s) })
	t.Run("clients verify", func(t *testing.T) {
		if r, err := http.Get(s.URL() + "/readyz"); err == nil {
			r.Body.Close()
			t.Error("a client without the CA certificate was served")
		}
	})
}

func checkRights(t *testing.T, c kubernetes.Interface) {
	ctx, nodes := t.Context(), c.CoreV1().Nodes()
	patch := []byte(`{"metadata":{"annotations":{"twill.example/key":"value"}},` +
		`"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]}}`)

	list, err := nodes.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("list nodes: %d, %v; want 1", len(list.Items), err)
	}
	n, err := nodes.Patch(ctx, "n1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Errorf("patch nodes/status: %v", err)
	} else if n.Annotations["twill.example/key"] != "value" || len(n.Status.Conditions) != 1 {
		t.Errorf("patch nodes/status did not stick: %v %v", n.Annotations, n.Status.Conditions)
	}
	if err := create(t, c, "namespaces/default/events", event); err != nil {
		t.Errorf("create an event: %v", err)
	}

	// What a compromised agent could do harm with.
	_, err = nodes.Patch(ctx, "n1", types.MergePatchType, patch, metav1.PatchOptions{})
	wantForbidden(t, "patch nodes", err)
	wantForbidden(t, "delete nodes", nodes.Delete(ctx, "n1", metav1.DeleteOptions{}))
	_, err = c.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	wantForbidden(t, "list secrets", err)
}

// The second start finds the first server still running, as after a crash of the program that started it.
func TestRestartKeepsCredentialsAndData(t *testing.T) {
	cfg := controlplane.APIServerConfig{
		Dir:           t.TempDir(),
		EtcdEndpoints: controlplanetest.Etcd(t).Endpoints(),
		Users:         []controlplane.User{{Name: agent, Token: "given"}, {Name: "other"}},
	}
	first := start(t, cfg)
	old := client(t, first, controlplane.Admin)
	if err := create(t, old, "nodes", node); err != nil {
		t.Fatal(err)
	}

	cfg.Listen = netip.MustParseAddrPort(strings.TrimPrefix(first.URL(), "https://"))
	second := start(t, cfg)
	if first.Alive() {
		t.Error("the first server was left running")
	}
	if _, err := old.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("a client of the first server on the second one: %v", err)
	}
	if second.Token(agent) != "given" || second.Token("other") == "" || second.Token("other") != first.Token("other") {
		t.Error("the tokens changed")
	}
	stop(t, first) // must not make its successor unfindable
	if _, err := controlplane.OpenAPIServer(cfg.Dir); err != nil {
		t.Error(err)
	}
}

// A server is found again by its directory, and ended by whoever finds it.
func TestServerIsFoundAgain(t *testing.T) {
	cfg := controlplane.APIServerConfig{
		Binary:        controlplanetest.Binary(t, "kube-apiserver"),
		Dir:           t.TempDir(),
		EtcdEndpoints: controlplanetest.Etcd(t).Endpoints(),
		Listen:        netip.MustParseAddrPort("0.0.0.0:0"),
		Names:         []string{"api.lab", "192.0.2.1"},
	}
	s, err := controlplane.StartAPIServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })

	found, err := controlplane.OpenAPIServer(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if found.Pid() != s.Pid() || found.URL() != s.URL() || !found.Alive() {
		t.Errorf("found pid %d at %s, want %d at %s", found.Pid(), found.URL(), s.Pid(), s.URL())
	}
	if err := found.ApplyAgentRBAC(t.Context(), agent); err != nil {
		t.Error(err)
	}
	for _, name := range cfg.Names {
		if err := servingCertificate(t, s).VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	stop(t, found)
	if s.Alive() {
		t.Error("it still runs after Close")
	}
	if _, err := controlplane.OpenAPIServer(cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open after Close: %v", err)
	}
}

func checkModes(t *testing.T, s *controlplane.APIServer) {
	dir := filepath.Dir(s.LogFile())
	for _, path := range []string{
		"ca.key", "tls.key", "sa.key", "tokens.csv", "apiserver.json",
		filepath.Base(s.KubeconfigFile(controlplane.Admin)), filepath.Base(s.KubeconfigFile(account)),
	} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode().Perm())
		}
	}
}

func TestStartSaysWhyItFailed(t *testing.T) {
	cfg := controlplane.APIServerConfig{
		Binary:        controlplanetest.Binary(t, "kube-apiserver"),
		Dir:           t.TempDir(),
		EtcdEndpoints: []string{"http://127.0.0.1:1"},
		Flags:         []string{"--no-such-flag"},
	}
	_, err := controlplane.StartAPIServer(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v, want the process' own words", err)
	}
}

func client(t *testing.T, s *controlplane.APIServer, user string) kubernetes.Interface {
	t.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig(s.Token(user)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func stop(t *testing.T, s *controlplane.APIServer) {
	t.Helper()
	started := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("kube-apiserver gone after %v", time.Since(started).Round(time.Millisecond))
}

func servingCertificate(t *testing.T, s *controlplane.APIServer) *x509.Certificate {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CA())
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"), &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

func wantForbidden(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: got %v, want forbidden", what, err)
	}
}

const (
	node  = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}`
	event = `{"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "n1.", "namespace": "default"},
		"involvedObject": {"kind": "Node", "name": "n1"}, "reason": "Test", "type": "Normal"}`
)

// create makes an object, which is given as JSON.
func create(t *testing.T, c kubernetes.Interface, collection, object string) error {
	t.Helper()
	return c.CoreV1().RESTClient().Post().AbsPath("/api/v1", collection).
		SetHeader("Content-Type", "application/json").Body([]byte(object)).Do(t.Context()).Error()
}
