//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/test/cluster"
)

// prometheusAPI is where the test's Prometheus listens, in the namespace of the cluster's first node.
const prometheusAPI = "127.0.0.1:9090"

// TestPrometheus installs the chart with an open port, and lets Debian's Prometheus scrape the agents with the config of
// Documentation/metrics.md.
func TestPrometheus(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "twp", Nodes: 2})
	execute(t, "helm install twill deploy/chart --set healthz.address=0.0.0.0 --set metrics.scrapeAnnotations=true --wait --timeout 120s")
	must(t, spec.WaitReady(t.Context()))
	converge(t)
	startPrometheus(t)
	all := func(query string, want ...string) {
		await(t, query, time.Minute, func() (bool, error) {
			out, err := ask(t.Context(), query)
			got := regexp.MustCompile(`instance="([^"]*)"`).FindAllStringSubmatch(out, -1)
			ok := err == nil && len(got) == len(want)
			for _, w := range want {
				ok = ok && strings.Contains(out, `instance="`+w+`"`)
			}
			if !ok {
				return false, errors.Join(err, errors.New(out))
			}
			return true, nil
		})
	}
	nodes := []string{spec.NodeName(1), spec.NodeName(2)}
	all(`up == 1`, nodes...) // neither the API server's other pods nor the init containers
	all(`twill_ready{job="twill"} == 1`, nodes...)
	all(`twill_peers == 1`, nodes...)
	all(`ALERTS`)
	// A lost route is mended, and counted.
	_, err := spec.Host(nodes[1]).Exec(t.Context(), "ip", "route", "flush", "dev", "flannel.1")
	must(t, err)
	all(`increase(twill_changes_total{kind="route"}[20s]) > 0`, nodes[1])
	execute(t, "helm uninstall twill --wait")
}

// startPrometheus runs Prometheus on the first node until the test ends.
func startPrometheus(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	must(t, err)
	page, err := os.ReadFile(filepath.Join(root, "Documentation/metrics.md"))
	must(t, err)
	_, config, _ := strings.Cut(string(page), "```yaml\n")
	config, _, _ = strings.Cut(config, "```\n")
	const discovery = "  kubernetes_sd_configs:\n  - role: pod\n    namespaces: {names: [kube-twill]}\n"
	if !strings.Contains(config, discovery) {
		t.Fatalf("the page's config is another than this test knows:\n%s", config)
	}
	config = strings.Replace(config, discovery, "  static_configs:\n"+discovered(t), 1)
	config = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n" +
		"rule_files: [" + filepath.Join(root, "deploy/chart/monitoring/alerts.yaml") + "]\n" + config
	dir := t.TempDir()
	file, log := filepath.Join(dir, "prometheus.yaml"), filepath.Join(dir, "log")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	p, err := spec.Host(spec.NodeName(1)).Start(host.Command{
		Path: filepath.Join(root, "bin/prometheus/prometheus"),
		Args: []string{"--config.file=" + file, "--storage.tsdb.path=" + dir, "--web.listen-address=" + prometheusAPI},
		Log:  log,
	})
	must(t, err)
	t.Cleanup(func() {
		if said, err := os.ReadFile(log); t.Failed() {
			t.Logf("%s %v", said, err)
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
}

// discovered is what Prometheus' discovery of pods gives for those of kube-twill, as static_configs: a target for each
// container. Debian's Prometheus is built without that discovery.
func discovered(t *testing.T) (targets string) {
	t.Helper()
	pods := kubectl(t, "--namespace", "kube-twill", "get", "pods", `--output=jsonpath={range .items[*]}{.status.podIP} {.spec.nodeName} `+
		`{.metadata.labels.app\.kubernetes\.io/name} {.spec.initContainers[*].name}{"\n"}{end}`)
	for line := range strings.Lines(pods) {
		f := strings.Fields(line)
		if len(f) < 3 {
			t.Fatalf("a pod of kube-twill is %q, want an address, a node and a label", line)
		}
		for i := range f[2:] { // the agent's container, and after it the init containers
			targets += fmt.Sprintf("  - {targets: [%q], labels: {__meta_kubernetes_pod_label_app_kubernetes_io_name: %s, __meta_kubernetes_pod_container_init: %q, "+
				"__meta_kubernetes_pod_ip: %q, __meta_kubernetes_pod_node_name: %s}}\n", fmt.Sprintf("%s:%d", f[0], 10000+i), f[2], fmt.Sprint(i > 0), f[0], f[1])
		}
	}
	return targets
}

// ask is what Prometheus answers to a query, a line for each series.
func ask(ctx context.Context, query string) (string, error) {
	program, err := filepath.Abs("../../../bin/prometheus/promtool")
	if err != nil {
		return "", err
	}
	return spec.Host(spec.NodeName(1)).Exec(ctx, program, "query", "instant", "http://"+prometheusAPI, query)
}
