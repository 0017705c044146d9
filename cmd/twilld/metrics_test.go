package main

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
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy/enforce"
)

const metricsPage = "../../Documentation/metrics.md"

// metric is one of the agent's, as its page lists it.
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
	case prometheus.Histogram:
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
	agentMetrics(r)
	enforce.NewMetrics(r)
	pods.NewMetrics(r)
	r.MustRegister(enforce.New(enforce.Config{}).Collector(), fastPathCounts{})
	slices.SortFunc(r.all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return r.all
}

// TestMetricsPage: the page lists what an agent registers. TWILL_WRITE=1 writes it.
func TestMetricsPage(t *testing.T) {
	const marker = "<!-- metrics -->\n"
	data, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, have, _ := strings.Cut(string(data), marker)
	want := "| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, m := range agentsMetrics(t) {
		if strings.HasSuffix(m.name, "_total") != (m.kind == "counter") || !strings.HasPrefix(m.name, "twill_") || !strings.HasSuffix(m.help, ".") {
			t.Errorf("%+v: want twill_… and a sentence, and _total for a counter and nothing else", m)
		}
		want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, m.help)
	}
	if os.Getenv("TWILL_WRITE") != "" {
		have = want
		if err := os.WriteFile(metricsPage, []byte(head+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have != want {
		t.Errorf("%s does not end with what agents register: make reference", metricsPage)
	}
	for k := netstate.KindLink; k <= netstate.KindHook; k++ {
		if !strings.Contains(head, "`"+k.String()+"`") {
			t.Errorf("%s does not name the kind of object %s", metricsPage, k)
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
