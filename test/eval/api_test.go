package eval

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// agentUser is who the lab's agents are for the API server.
const agentUser = "system:serviceaccount:kube-flannel:twill"

// ward is a node of a lab with a real API server, and the program, which runs on it as people run it.
type ward struct {
	program, file string // twillctl, and the kubeconfig that it is given
	node          *lab.Node
	api           *controlplane.APIServer
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{program: filepath.Join(labtest.BinDir(t), "twillctl"), file: filepath.Join(t.TempDir(), "kubeconfig")}
	l := labtest.Up(t, lab.Spec{Name: "doctorinside", Store: lab.Kube, Nodes: 2, Pods: 1})
	w.node = l.Nodes()[1]
	var err error
	w.api, err = controlplane.OpenAPIServer(filepath.Join(l.Dir(), "apiserver"))
	check(t, err)
	return w
}

// ask runs the doctor.
func (w *ward) ask(t *testing.T, args ...string) doctor.Diagnosis {
	t.Helper()
	out, _ := w.node.Exec(t.Context(), append([]string{w.program, "doctor", "-o", "json"}, args...)...) // exits 1 with findings
	var r doctor.Diagnosis
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

// await asks until the report is as wanted.
func (w *ward) await(t *testing.T, wanted func(doctor.Diagnosis) bool, args ...string) {
	t.Helper()
	testwait.Nil(t, "the report that is wanted", func() error {
		if r := w.ask(t, args...); !wanted(r) {
			return fmt.Errorf("got %+v", r)
		}
		return nil
	})
}

// kubeconfig is the agent's own, with a part of it replaced.
func (w *ward) kubeconfig(t *testing.T, pattern, with string) string {
	t.Helper()
	own := w.api.Kubeconfig(w.api.Token(agentUser))
	changed := regexp.MustCompile(pattern).ReplaceAll(own, []byte(with))
	if bytes.Equal(own, changed) {
		t.Fatalf("the kubeconfig has no %s", pattern)
	}
	check(t, os.WriteFile(w.file, changed, 0o600))
	return w.file
}

// TestInside runs the program itself on a node, as people do: it finds the agent and its flags by itself, and asks the
// API server with the agent's rights, or with wrong ones, or one that refuses it.
func TestInside(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.await(t, func(r doctor.Diagnosis) bool {
		return len(r.Findings) == 0 && r.Peers == 1 && r.Node == w.node.Name && r.Schema == doctor.Schema
	})
	for name, trouble := range map[string]struct {
		finding, says, fix string
		args               func(*testing.T) []string
	}{
		"401": {"api-trouble", "unauthorized", "401", func(t *testing.T) []string { return w.with(t, `token: .*`, "token: wrong") }},
		"unknown authority": {"api-trouble", "unknown authority", "certificate-authority", func(t *testing.T) []string {
			return w.with(t, `certificate-authority-data: .*`, "certificate-authority-data: "+base64.StdEncoding.EncodeToString(selfSigned(t, time.Now().Add(time.Hour)).authority()))
		}},
		"nobody answers": {"api-trouble", "connection refused", "nobody answers", func(t *testing.T) []string { return w.with(t, `(server: https://.*):\d+`, "$1:1") }},
		"expired":        {"clock-skew", "certificate has expired or is not yet valid", "", w.expired},
		"403":            {"api-trouble", "forbidden", "grant " + agentUser + " the verb get on nodes", w.withoutRights},
		"429":            {"api-trouble", "too many requests", "429", w.overloaded},
	} {
		t.Run(name, func(t *testing.T) {
			w.await(t, func(r doctor.Diagnosis) bool {
				return len(r.Findings) == 1 && r.Findings[0].ID == trouble.finding && strings.Contains(r.Findings[0].Fix, trouble.fix) &&
					strings.Contains(strings.ToLower(r.Findings[0].Actual), trouble.says)
			}, trouble.args(t)...)
		})
	}
	t.Run("policies", w.policies)
	w.await(t, func(r doctor.Diagnosis) bool { return len(r.Findings) == 0 })
}

// policies: NetworkPolicies that nothing enforces are found by who may read them. Agents that do not enforce them may not.
func (w *ward) policies(t *testing.T) {
	const path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
	admin := []string{"--kubeconfig-file", w.api.KubeconfigFile(controlplane.Admin)}
	w.await(t, func(r doctor.Diagnosis) bool { return len(r.Findings) == 0 }, admin...)
	w.asAdmin(t, http.MethodPost, path, map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": map[string]string{"name": "deny"}, "spec": map[string]any{"podSelector": map[string]any{}}})
	defer w.asAdmin(t, http.MethodDelete, path+"/deny", nil)
	w.await(t, func(r doctor.Diagnosis) bool { return len(r.Findings) == 0 })
	w.await(t, func(r doctor.Diagnosis) bool {
		return len(r.Findings) == 1 && r.Findings[0].ID == "policies-not-enforced" && r.Policies == nil &&
			r.Findings[0].Actual == "one exists, and nothing on this node enforces them"
	}, admin...)
	_, err := w.node.Exec(t.Context(), "iptables", "-w", "-N", "KUBE-ROUTER-FORWARD")
	check(t, err)
	w.await(t, func(r doctor.Diagnosis) bool {
		return len(r.Findings) == 0 && r.Policies != nil && slices.Equal(r.Policies.Engines, []string{"kube-router"})
	}, admin...)
	_, err = w.node.Exec(t.Context(), "iptables", "-w", "-X", "KUBE-ROUTER-FORWARD")
	check(t, err)
}

func (w *ward) with(t *testing.T, pattern, with string) []string {
	return []string{"--kubeconfig-file", w.kubeconfig(t, pattern, with)}
}

// withoutRights takes the agent's role from it, until the test ends.
func (w *ward) withoutRights(t *testing.T) []string {
	const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	w.asAdmin(t, http.MethodDelete, bindings+"/twill", nil)
	t.Cleanup(func() {
		w.asAdmin(t, http.MethodPost, bindings, map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]string{"name": "twill"},
			"roleRef":  map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "twill"},
			"subjects": []map[string]string{{"kind": "ServiceAccount", "namespace": "kube-flannel", "name": "twill"}}})
	})
	return nil
}

func (w *ward) asAdmin(t *testing.T, method, path string, body any) {
	t.Helper()
	data, err := json.Marshal(body)
	check(t, err)
	transport := w.api.Transport(w.node.Dial)
	transport.DisableKeepAlives = true
	client := http.Client{Transport: transport}
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, w.api.URL()+path, bytes.NewReader(data))
	check(t, err)
	r.Header.Set("Authorization", "Bearer "+w.api.Token(controlplane.Admin))
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	check(t, err)
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s: %s", method, path, answer.Status, text)
	}
}

// expired has the certificate of the server valid until yesterday, as it looks where a clock is wrong.
func (w *ward) expired(t *testing.T) []string {
	return w.front(t, time.Now().Add(-24*time.Hour), http.NotFoundHandler())
}

// overloaded answers what an API server says whose priority levels are full.
func (w *ward) overloaded(t *testing.T) []string {
	return w.front(t, time.Now().Add(time.Hour), http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Retry-After", "1")
		http.Error(out, "Too many requests, please try again later.", http.StatusTooManyRequests)
	}))
}

// front serves on the node, with a certificate that is valid until then, and has the kubeconfig lead there.
func (w *ward) front(t *testing.T, until time.Time, h http.Handler) []string {
	at := netip.MustParseAddrPort("127.0.0.1:8443")
	l, err := w.node.Listen(t.Context(), at)
	check(t, err)
	cert := selfSigned(t, until)
	server := http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		_ = server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{tls.Certificate(cert)}}))
	}()
	t.Cleanup(func() { check(t, server.Close()) })
	return w.with(t, `server: .*\n( *)certificate-authority-data: .*`,
		"server: https://"+at.String()+"\n${1}certificate-authority-data: "+base64.StdEncoding.EncodeToString(cert.authority()))
}

type certificate tls.Certificate

// selfSigned is for 127.0.0.1, until then.
func selfSigned(t *testing.T, until time.Time) certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-2 * time.Hour), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	check(t, err)
	return certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// authority is the certificate as a kubeconfig has it, before base64.
func (c certificate) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}
