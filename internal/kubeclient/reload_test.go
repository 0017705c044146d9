package kubeclient

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestOpenReadsAgain: a call that is refused is made again with the credentials that the kubeconfig has now, with its body.
// One whose kubeconfig says nothing else, or cannot be read, is not.
func TestOpenReadsAgain(t *testing.T) {
	var token atomic.Pointer[string]
	var calls atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+*token.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(token string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\n"+
			"users: [{name: u, user: {token: %q}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", server.URL, ca, token)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is := func(s string) { token.Store(&s) }
	write("first")
	is("first")
	c, err := Open(Server{Kubeconfig: path})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.REST(schema.GroupVersion{Version: "v1"}, func(*rest.Config) {})
	if err != nil {
		t.Fatal(err)
	}
	call := func(want string, wantCalls int32) {
		t.Helper()
		calls.Store(0)
		body, err := r.Post().AbsPath("/x").Body([]byte("a body")).MaxRetries(0).Do(t.Context()).Raw()
		if got := fmt.Sprint(string(body), err); !strings.Contains(got, want) || calls.Load() != wantCalls {
			t.Errorf("answered %s after %d calls, want %s after %d", got, calls.Load(), want, wantCalls)
		}
	}
	call("a body", 1)
	write("second")
	call("a body", 1) // it is good still
	is("second")
	call("a body", 2)
	call("a body", 1)
	is("third")
	call("asked for the client to provide credentials", 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	call("asked for the client to provide credentials", 1)
	write("third")
	call("a body", 2)
}
