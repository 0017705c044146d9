//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// asAgent makes a call with a token, the way the agent makes it: kubectl would ask for more rights.
type asAgent struct {
	client *http.Client
	server string
}

func newAsAgent(t *testing.T) asAgent {
	t.Helper()
	ca, err := os.ReadFile(spec.APIDir() + "/ca.crt")
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	server := strings.TrimSpace(kubectl(t, "config", "view", "--output=jsonpath={.clusters[0].cluster.server}"))
	return asAgent{&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}, server}
}

func (a asAgent) do(t *testing.T, method, token, path, body string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.server+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	resp, err := a.client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(data)
}

// TestPolicy: an agent's token changes its own node's status, in its own part, and nothing else.
func TestPolicy(t *testing.T) {
	pod := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "get", "pods", "--field-selector=spec.nodeName=node2", "--output=jsonpath={.items[0].metadata.name}"))
	bound := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "create", "token", "twill", "--bound-object-kind=Pod", "--bound-object-name="+pod))
	loose := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "create", "token", "twill"))
	agent := newAsAgent(t)
	note := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value) }
	const own, attach = "flannel.alpha.coreos.com/test", "volumes.kubernetes.io/controller-managed-attach-detach"
	for _, c := range []struct{ name, token, path, body, denied string }{
		{"its own annotation", bound, "node2/status", note(own, `"x"`), ""},
		{"to remove it again", bound, "node2/status", note(own, "null"), ""},
		{"its condition", bound, "node2/status", `{"status":{"conditions":[{"type":"NetworkUnavailable","message":"test"}]}}`, ""},
		{"its other condition", bound, "node2/status", `{"status":{"conditions":[{"type":"TwillPeersReached","status":"True"}]}}`, ""},
		{"another node", bound, "node3/status", note(own, `"x"`), "an agent may change its own node only"},
		{"a token of no pod", loose, "node2/status", note(own, `"x"`), "an agent may change its own node only"},
		{"a foreign annotation", bound, "node2/status", note("example.com/x", `"y"`), "annotations under flannel.alpha.coreos.com/ only"},
		{"to remove a foreign annotation", bound, "node2/status", note(attach, "null"), "annotations under flannel.alpha.coreos.com/ only"},
		{"a label", bound, "node2/status", `{"metadata":{"labels":{"x":"y"}}}`, "neither labels"},
		{"another condition", bound, "node2/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "the conditions NetworkUnavailable and TwillPeersReached only"},
		{"its capacity", bound, "node2/status", `{"status":{"capacity":{"cpu":"100"}}}`, "nothing of the status but"},
		{"its addresses", bound, "node2/status", `{"status":{"addresses":[{"type":"InternalIP","address":"172.30.0.99"}]}}`, "nothing of the status but"},
		{"its spec", bound, "node2", `{"spec":{"unschedulable":true}}`, "cannot patch resource"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := agent.do(t, http.MethodPatch, c.token, "/api/v1/nodes/"+c.path, c.body)
			switch {
			case c.denied == "" && status != http.StatusOK:
				t.Errorf("denied: %s", text)
			case c.denied != "" && (status/100 != 4 || !strings.Contains(text, c.denied)):
				t.Errorf("got %d %.300s, want %q", status, text, c.denied)
			}
		})
	}
}
