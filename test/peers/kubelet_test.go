//go:build soak

package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/lab"
)

type object = map[string]any

// kubelet is a client of the lab's API server with the certificate of one node, or the administrator.
type kubelet struct {
	client http.Client
	url    string
	token  string // the administrator's, else empty
}

// newKubelet makes a client for node; without a node it is the administrator's.
func newKubelet(t *testing.T, l *lab.Lab, node string) *kubelet {
	t.Helper()
	dir := filepath.Join(l.Dir(), "apiserver")
	api, err := controlplane.OpenAPIServer(dir)
	must(t, err)
	router, err := l.Find("underlay")
	must(t, err)
	k, transport := &kubelet{url: api.URL()}, api.Transport(router.Dial)
	if node == "" {
		k.token = api.Token(controlplane.Admin)
	} else {
		cert, key, err := controlplane.IssueClient(dir, "system:node:"+node, "system:nodes")
		must(t, err)
		pair, err := tls.X509KeyPair(cert, key)
		must(t, err)
		transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	k.client.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	return k
}

// do makes a request and returns the status and the answer.
func (k *kubelet) do(ctx context.Context, method, path string, body any) (int, []byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, k.url+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if k.token != "" {
		req.Header.Set("Authorization", "Bearer "+k.token)
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// mustDo is do where only success will do.
func (k *kubelet) mustDo(t *testing.T, method, path string, body any) []byte {
	t.Helper()
	status, answer, err := k.do(t.Context(), method, path, body)
	if err != nil || status/100 != 2 {
		t.Fatalf("%s %s: %d, %v: %s", method, path, status, err, answer)
	}
	return answer
}

// annotations are a node's, by the name behind flannel's prefix.
func (k *kubelet) annotations(t *testing.T, node string) map[string]string {
	t.Helper()
	var n struct {
		Metadata struct{ Annotations map[string]string }
	}
	must(t, json.Unmarshal(k.mustDo(t, http.MethodGet, "/api/v1/nodes/"+node, nil), &n))
	notes := map[string]string{}
	for name, value := range n.Metadata.Annotations {
		if len(name) > len(prefix) && name[:len(prefix)] == prefix {
			notes[name[len(prefix):]] = value
		}
	}
	return notes
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nodePath(name string) string { return fmt.Sprintf("/api/v1/nodes/%s", name) }
