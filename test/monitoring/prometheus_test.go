package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

const (
	root = "../../"
	// api is where Prometheus listens, in the namespace of a node.
	api = "127.0.0.1:9090"
)

// server is a Prometheus.
type server struct {
	*testing.T
	client http.Client
}

// find finds Prometheus, or skips the test: not every system has a package of it.
func find(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "bin/prometheus/prometheus")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err == nil {
		return path
	}
	if path, err = exec.LookPath("prometheus"); err != nil {
		t.Skipf("needs prometheus, run `make kube-tools`: %v", err)
	}
	return path
}

// deny is a policy that both agents of the lab enforce.
const deny = "{kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {}, policyTypes: [Ingress]}}"

// up starts a lab whose agents listen on all addresses, and enforce a policy.
func up(t *testing.T) *lab.Lab {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "twilld-open")
	script := "#!/bin/sh\nexec " + labtest.Spec(lab.Spec{}).Programs.Agent + " \"$@\" --healthz-ip=0.0.0.0 --reservations-grace=2s --reservations-dir=" + t.TempDir() + "\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l := labtest.Up(t, lab.Spec{Name: "monitoring", Backend: "aws-vpc", Store: lab.File, Nodes: 2, Pods: 1, NetworkPolicy: true,
		Agents: map[string]string{"": agent}})
	if err := l.ApplyManifest("deny.yaml", []byte(deny)); err != nil {
		t.Fatal(err)
	}
	return l
}

// start starts a Prometheus on the lab's first node.
func start(t *testing.T, l *lab.Lab) server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config(t, l)), 0o600); err != nil {
		t.Fatal(err)
	}
	n := l.Nodes()[0]
	p, err := n.Start(host.Command{
		Path: find(t),
		Args: []string{"--config.file=" + file, "--storage.tsdb.path=" + dir, "--web.listen-address=" + api},
		Env:  []string{"TWILL_LAB=" + l.Dir(), "GOMAXPROCS=1"}, // the mark by which a lab's processes are found after a crash
		Log:  filepath.Join(dir, "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(p.Log); t.Failed() {
			t.Logf("%s %v", log, err)
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return server{t, http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.Dial}}}
}

// config is that of Documentation/metrics.md. What it would learn from an API server is said of the agents and of two
// containers that are none.
func config(t *testing.T, l *lab.Lab) string {
	t.Helper()
	const global = "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\n"
	_, text, _ := strings.Cut(read(t, "Documentation/metrics.md"), "```yaml\n")
	text, _, _ = strings.Cut(text, "```\n")
	const kubernetes = "  kubernetes_sd_configs:\n  - role: pod\n    namespaces: {names: [kube-twill]}\n"
	if !strings.Contains(text, kubernetes) || !strings.Contains(text, ":10267\"") {
		t.Fatalf("the page's config is another than this test knows:\n%s", text)
	}
	targets := "  static_configs:\n"
	add := func(address, name, node string, init bool) {
		targets += fmt.Sprintf("  - {targets: [%q], labels: {__meta_kubernetes_pod_label_app_kubernetes_io_name: %s, __meta_kubernetes_pod_container_init: %q, "+
			"__meta_kubernetes_pod_ip: %q, __meta_kubernetes_pod_node_name: %s}}\n", address, name, fmt.Sprint(init), address, node)
	}
	for _, n := range l.Nodes() {
		add(n.Underlay()[0].String(), "twill", n.Name, false)
	}
	add("192.0.2.1", "twill", "init", true)
	add("192.0.2.2", "coredns", "other", false)
	alerts, err := filepath.Abs(root + "deploy/chart/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(strings.Replace(text, kubernetes, targets, 1), ":10267", ":10256") // the lab's port
	return global + "rule_files: [" + alerts + "]\n" + text
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// ask asks Prometheus' API.
func (s server) ask(path string, parameters url.Values, into any) error {
	ctx, cancel := context.WithTimeout(s.Context(), testwait.Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+api+"/api/v1/"+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// series are the values of a query's series, by instance, or "" where they have none.
func (s server) series(query string) (map[string]string, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	err := s.ask("query", url.Values{"query": {query}}, &data)
	values := map[string]string{}
	for _, r := range data.Result {
		values[r.Metric["instance"]] = fmt.Sprint(r.Value[1])
	}
	return values, err
}
