package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/agent/pods"
	"github.com/twill-net/twill/internal/reference"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy/enforce"
)

// metric is one of the agent's.
type metric struct{ name, kind, labels, help string }

// recorder is a registry that notes what is registered.
type recorder struct {
	*prometheus.Registry
	t   *testing.T
	all []metric
}

// described is the text of a prometheus.Desc, which has no other way to its parts.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "([^"]*)", unit: "", constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

// MustRegister notes the metrics of the collectors.
func (r *recorder) MustRegister(all ...prometheus.Collector) {
	r.Registry.MustRegister(all...)
	for _, c := range all {
		descs := make(chan *prometheus.Desc)
		go func() {
			c.Describe(descs)
			close(descs)
		}()
		for d := range descs {
			r.note(c, d.String())
		}
	}
}

// note notes one metric of a collector.
func (r *recorder) note(c prometheus.Collector, desc string) {
	parts := described.FindStringSubmatch(desc)
	if parts == nil {
		r.t.Errorf("this test does not understand %s", desc)
		return
	}
	var labels []string
	for label := range strings.SplitSeq(parts[3]+","+parts[4], ",") {
		if name, _, _ := strings.Cut(label, "="); name != "" {
			labels = append(labels, "`"+name+"`")
		}
	}
	r.all = append(r.all, metric{parts[1], kindOf(c, parts[1]), strings.Join(labels, ", "), parts[2]})
}

// kindOf is the type of a metric in Prometheus' words. The order matters: a gauge has all methods of a counter.
func kindOf(c prometheus.Collector, name string) string {
	switch c.(type) {
	case *prometheus.GaugeVec, prometheus.Gauge:
		return "gauge"
	case *prometheus.CounterVec, prometheus.Counter:
		return "counter"
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	}
	if strings.HasSuffix(name, "_total") {
		return "counter" // of a collector of our own
	}
	return "gauge" // a GaugeFunc, which has no methods of its own
}

// agentsMetrics are the metrics that an agent registers, by name.
func agentsMetrics(t *testing.T) []metric {
	t.Helper()
	r := &recorder{Registry: prometheus.NewRegistry(), t: t}
	agentMetrics(r, "devel")
	enforce.NewMetrics(r)
	pods.NewMetrics(r)
	r.MustRegister(enforce.New(enforce.Config{}).Collector(), fastPathCounts{})
	slices.SortFunc(r.all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return r.all
}

// TestMetricsReference makes the page of the agent's metrics.
func TestMetricsReference(t *testing.T) {
	page := "# All metrics\n\n[Metrics](../metrics.md) says how Prometheus gets them, and what the label `kind` is.\n\n" +
		"| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, m := range agentsMetrics(t) {
		if strings.HasSuffix(m.name, "_total") != (m.kind == "counter") || !strings.HasPrefix(m.name, "twill_") || !strings.HasSuffix(m.help, ".") {
			t.Errorf("%+v: want twill_… and a sentence, and _total for a counter and nothing else", m)
		}
		page += fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, m.help)
	}
	reference.Write(t, "metrics.md", page)
}

// TestMetricsShown: every metric is on the dashboard, and the page explains every kind of object.
func TestMetricsShown(t *testing.T) {
	dashboard, err := os.ReadFile("../../deploy/chart/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range agentsMetrics(t) {
		if !strings.Contains(string(dashboard), m.name) {
			t.Errorf("the dashboard does not show %s", m.name)
		}
	}
	page, err := os.ReadFile("../../Documentation/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for k := netstate.KindLink; k <= netstate.KindHook; k++ {
		if !strings.Contains(string(page), "`"+k.String()+"`") {
			t.Errorf("Documentation/metrics.md does not name the kind of object %s", k)
		}
	}
}

// TestMetricsNamed: documents and what is deployed name no metric that there is not.
func TestMetricsNamed(t *testing.T) {
	known := map[string]bool{}
	for _, m := range agentsMetrics(t) {
		known[m.name] = true
		if m.kind == "histogram" {
			known[m.name+"_bucket"], known[m.name+"_sum"], known[m.name+"_count"] = true, true, true
		}
	}
	// Not the files of a release, such as twill_v0.2.0.yml.
	named := regexp.MustCompile(`\btwill_[a-z_]+\b`)
	for _, pattern := range []string{"../../README.md", "../../CHANGELOG.md", "../../Documentation/*.md", "../../Documentation/*/*.md",
		"../../deploy/chart/*/*", "../../deploy/testdata/*", "../../doctor/status.go", "../../doctor/host.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range named.FindAllString(string(data), -1) {
				if !known[name] {
					t.Errorf("%s names the metric %s, which agents do not have", file, name)
				}
			}
		}
	}
}
